// Compute a minibatch's gradients as minibatch.kernel.h does, for layers whose weights and gradients don't fit a block. Activations have
// 16 bits, and actions are discrete. minibatch_wide writes the factors of the weights' gradients to device memory, and wide_gradients
// multiplies them.
//
// A block has M rows: all steps of SEGMENTS segments. The layers' 16-bit weights, `layers` (L, 3H, H), are streamed in tiles: the next
// tile is copied while the current one is multiplied. first (L, S, H): initial recurrent states. The other arrays are those of
// minibatch.kernel.h.

#pragma once

#include "samples.metal.h"

// Factors of the weights' gradients for n samples, consecutive in memory:
//
//   xs (L + 1, n, H)   inputs of the layers and of the decoder
//   dus (L, n, 3H)     the layers' gates; later replaced by the gradients with respect to the gates
//   dx (n, H)          gradients with respect to the first layer's input
//   dys (n, DY)        gradients with respect to the decoder's outputs, zero-padded
//   rows (n, W)        observations, zero-padded
template <class Pointer>
struct Factors { Pointer xs, dus, dx, dys, rows; };

template <uint H, uint L, uint DY, class Pointer>
FUNCTION Factors<Pointer> factors_of(Pointer xs, uint n) {
  Pointer dus = xs + (L + 1) * n * H, dx = dus + L * n * (3 * H), dys = dx + n * H;
  return {xs, dus, dx, dys, dys + n * DY};
}

// Copy the rows of a block's samples from shared memory to an array of all samples in device memory.
template <int SEGMENTS, int STEPS, int COLUMNS, int THREADS, class Low>
FUNCTION void write_rows(Swizzled<Low, COLUMNS> rows, IN_DEVICE Low* to, uint segment, uint S, uint me) {
  constexpr uint WIDTH = 16 / sizeof(Low), LINES = COLUMNS / WIDTH;
  for (uint k = me; k < SEGMENTS * STEPS * LINES; k += THREADS) {
    uint row = k / LINES, column = k % LINES * WIDTH, sample = sample_of<SEGMENTS, STEPS>((int)row, 0, segment, S);
    write_line(rows.numbers + rows.place(row, column), to + sample * COLUMNS + column);
  }
}

// Start copying the rows of a block's samples from an array of all samples in device memory to shared memory.
template <int SEGMENTS, int STEPS, int COLUMNS, int THREADS, class Low>
FUNCTION void fetch_rows(IN_DEVICE const Low* from, Swizzled<Low, COLUMNS> rows, uint segment, uint S, uint me) {
  constexpr uint WIDTH = 16 / sizeof(Low), LINES = COLUMNS / WIDTH;
  for (uint k = me; k < SEGMENTS * STEPS * LINES; k += THREADS) {
    uint row = k / LINES, column = k % LINES * WIDTH, sample = sample_of<SEGMENTS, STEPS>((int)row, 0, segment, S);
    copy_line(from + sample * COLUMNS + column, rows.numbers + rows.place(row, column));
  }
}

// Add the gradient with respect to a layer's input to `to`: du (64, 3H), the gradient with respect to the layer's gates, times the
// weight (3H, H). The weight's tiles (64, H) alternate between the buffers place0 and place1.
template <int H, int THREADS, class Low>
FUNCTION void stream_back(Swizzled<Low, 3 * H> du, IN_DEVICE const Low* weight, Swizzled<Low, H> to, IN_SHARED Low* place0,
                          IN_SHARED Low* place1, uint me) {
  constexpr int TILES = H / 64, CHUNKS = 3 * H / 64;
  uint row = me / 256 * 32, column = me / 32 % 8 * (8 * TILES);
  float sums[2][TILES][4];
  clear(sums);
  fetch_tile<64, H, H, THREADS>(weight, Swizzled<Low, H>{place0}, me);
  END_OF_COPIES
  for (int n = 0; n < CHUNKS; ++n) {
    int next = n + 1;
    WAIT_FOR_COPIES(0)
    BARRIER
    if (next < CHUNKS) fetch_tile<64, H, H, THREADS>(weight + next * (64 * H), Swizzled<Low, H>{next % 2 ? place1 : place0}, me);
    END_OF_COPIES
    Swizzled<Low, 3 * H> left = {du.numbers + n * 64};
    Swizzled<Low, H> tile = {n % 2 ? place1 : place0};
    add_product<0, 64, 2, TILES, 8>(left, row, tile, column, me, sums);
  }
#pragma unroll
  for (int v = 0; v < 8 * TILES; v += 2) {
    uint r = row + (uint)(v / (4 * TILES)) * 16 + row_of(v % 4, me), c = column + (uint)(v / 4 % TILES) * 8 + column_of(v % 4, me);
    IN_SHARED Low* at = to.numbers + to.place(r, c);
    IN_THREAD const float* both = sums[v / (4 * TILES)][v / 4 % TILES] + v % 4;
    put_pair<Low>(at, (float)at[0] + both[0], (float)at[1] + both[1]);
  }
  BARRIER
}

KERNEL minibatch_wide<Low, Observed, BLOCKS, T, D, H, L, A, HEADS, MASKED, LIVE, SEGMENTS, THREADS, POOL, HIDDEN_C>:
  Observed observations, float actions, uint8_t masks, float not_done old_logprob old_value adv_or_rewards weight_or_terminals
  moments_or_final first encoder decoder logstd, Low layers, float ent_coef settings{ratio_low ratio_high clip vf_clip vf_coef limit
  gamma gamma_lambda rho_clip c_clip reward_clip},
  int sizes shape{S N not_done_step first_step G R within_rho bootstrap has_ratios has_final} agents
  -> Low factors, float partial ratio value adv {
  using Tile = BlockRows<T, H, A, HEADS, MASKED, LIVE, SEGMENTS, T, THREADS>;
  constexpr int STEPS = T, M = Tile::M, UNITS = Tile::UNITS, PARTS = Tile::PARTS, OUT = Tile::OUT, DY = OUT > 32 ? 64 : 32;
  constexpr int SEEN = (D + 15) / 16 * 16, W = (SEEN + 31) / 32 * 32, FLOATS = (Tile::SIZE + 31) / 32 * 32;
  constexpr int U = 3 * H, C = UNITS % (2 * THREADS) ? 1 : 2;  // channels per thread
  // Offsets of the arrays of type Low, in elements.
  constexpr int AT_S = 2 * M * H, AT_U = AT_S + M * H, AT_DY = AT_U + M * U, AT_DECODER = AT_DY + M * DY, LOWS = AT_DECODER + OUT * H;
  static_assert(M == 64 && THREADS == 512 && H % 64 == 0 && (M + H) * W <= M * U && THREADS <= M * U / 2, "no such division");
  static_assert(4 * FLOATS + (int)sizeof(Low) * LOWS <= 4 * POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED Low* low = (IN_SHARED Low*)(IN_SHARED void*)(pool + FLOATS);
  IN_SHARED float* part = (IN_SHARED float*)(IN_SHARED void*)(low + AT_U);
  Swizzled<Low, H> states = {low + AT_S}, decodes = {low + AT_DECODER};
  Swizzled<Low, U> u = {low + AT_U};
  Swizzled<Low, DY> dy = {low + AT_DY};
  Swizzled<Low, W> seen = {low + AT_U}, encodes = {low + AT_U + M * W};
  const uint S = (uint)shape.S, not_done_step = (uint)shape.not_done_step, first_step = (uint)shape.first_step, n = (uint)T * S;
  const uint N = (uint)shape.N, first_agent = (uint)agents[0];
  const bool has_ratios = shape.has_ratios != 0;
  Tile rows(pool, S, me, sizes, settings.limit);
  PPOCoefficients coefficients = {settings.ratio_low, settings.ratio_high, settings.clip, settings.vf_clip, settings.vf_coef,
                                  ent_coef[0]};
  SampleSums sums = {};
  auto to = factors_of<H, L, DY>(factors, n);
  if (!LIVE) spread_of(moments_or_final, n, (uint)shape.G, (uint)shape.R, part, me, (uint)THREADS, rows.mean, rows.deviation);
  keep_weight<OUT, H, THREADS>(decoder, A + 1, H, decodes, me);
  for (uint k = me; k < M * DY; k += THREADS) dy.put(k / DY, k % DY, 0.0f);

  for (uint segment = block * SEGMENTS; segment < S; segment += (uint)(BLOCKS * SEGMENTS)) {
    BARRIER
    load_rows(rows, 0, segment, actions, not_done, not_done_step, old_logprob, old_value, adv_or_rewards, weight_or_terminals);
    load_rewards(rows, segment, adv_or_rewards, weight_or_terminals, moments_or_final, shape.has_final != 0);
    load_observations<SEGMENTS, STEPS, D, W, THREADS>(observations, seen, 0, first_agent + segment, N, me);
    keep_weight<H, W, THREADS>(encoder, H, D, encodes, me);
    BARRIER
    multiply_rows<0, SEEN, M, H, HIDDEN_C, THREADS>(seen, transposed(encodes), Swizzled<Low, H>{low}, false, me);
    BARRIER
    write_rows<SEGMENTS, STEPS, H, THREADS>(Swizzled<Low, H>{low}, to.xs, segment, S, me);
    write_rows<SEGMENTS, STEPS, W, THREADS>(seen, to.rows, segment, S, me);
    for (int l = 0; l < L; ++l) {  // x and out alternate between two buffers
      Swizzled<Low, H> x = {low + l % 2 * (M * H)}, out = {low + (l + 1) % 2 * (M * H)};
      stream_gates<H, M, THREADS>(x, layers + l * (3 * H * H), u, out.numbers, states.numbers, me);
      for (uint k = me * C; k < UNITS * PARTS; k += C * THREADS) {
        uint unit = ((uint)l * S + segment) * (uint)H + k % UNITS;
        if (C > 1) {
          float before[2] = {first[unit * first_step], first[(unit + 1) * first_step]};
          walk_on<STEPS, AHEAD_OF(STEPS), SEGMENTS>(u, states, rows.not_done, k / H, k % H, H, before);
        } else {
          walk<STEPS, SEGMENTS, H, PARTS>(u, states, rows.not_done, rows.y, rows.y + THREADS, k, first[unit * first_step]);
        }
      }
      BARRIER
      for (uint k = me * 2; k < M * H; k += 2 * THREADS) {
        uint row = k / H, channel = k % H;
        walk_out(u, x, states, out, row, channel, H);
      }
      BARRIER
      write_rows<SEGMENTS, STEPS, H, THREADS>(out, to.xs + (uint)(l + 1) * n * H, segment, S, me);
      if (l < L - 1) write_rows<SEGMENTS, STEPS, U, THREADS>(u, to.dus + (uint)l * n * U, segment, S, me);
    }
    Swizzled<Low, H> dout = {low + L % 2 * (M * H)};
    multiply_rows<0, H, M, OUT, 1, THREADS>(dout, transposed(decodes), Apart<Tile::Y>{rows.y}, false, me);
    BARRIER
    if (LIVE) {
      Discounts by = {settings.gamma, settings.gamma_lambda, settings.rho_clip, settings.c_clip, settings.reward_clip,
                      shape.within_rho != 0, shape.bootstrap != 0};
      store_values(rows, 0, segment, has_ratios, masks, logstd);
      live_advantages(rows, by);
    }
    score_rows(rows, 0, segment, coefficients, masks, logstd, dy, ratio, value, adv, sums);
    BARRIER
    write_rows<SEGMENTS, STEPS, DY, THREADS>(dy, to.dys, segment, S, me);
    multiply_rows<0, OUT, M, H, HIDDEN_C, THREADS>(dy, decodes, dout, false, me);
    BARRIER
    for (int l = L - 1; l >= 0; --l) {
      Swizzled<Low, H> x = {low + (L - 1) % 2 * (M * H)};
      IN_DEVICE Low* of_layer = to.dus + (uint)l * n * U;
      if (l < L - 1) {
        fetch_rows<SEGMENTS, STEPS, H, THREADS>(to.xs + (uint)l * n * H, x, segment, S, me);
        fetch_rows<SEGMENTS, STEPS, U, THREADS>(of_layer, u, segment, S, me);
        END_OF_COPIES
        WAIT_FOR_COPIES(0)
        BARRIER
      }
      for (uint k = me * C; k < UNITS * PARTS; k += C * THREADS) {
        uint unit = ((uint)l * S + segment) * (uint)H + k % UNITS;
        if (C > 1) {
          float before[2] = {first[unit * first_step], first[(unit + 1) * first_step]}, state[2] = {before[0], before[1]};
          float carry[2] = {0.0f, 0.0f};
          if (l < L - 1) walk_on<STEPS, AHEAD_OF(STEPS), SEGMENTS>(u, states, rows.not_done, k / H, k % H, H, state);
          walk_back_on<STEPS, STEPS % 2 ? 1 : 2, SEGMENTS>(u, x, dout, states, rows.not_done, M - SEGMENTS + k / H, k % H, H, before, carry);
        } else {
          float before = first[unit * first_step];
          if (l < L - 1) walk<STEPS, SEGMENTS, H, PARTS>(u, states, rows.not_done, rows.y, rows.y + THREADS, k, before);
          if (PARTS > 1) BARRIER
          walk_back<STEPS, SEGMENTS, H, PARTS>(u, x, dout, states, rows.not_done, rows.y, rows.y + THREADS, k, before, 0.0f);
        }
      }
      BARRIER
      write_rows<SEGMENTS, STEPS, U, THREADS>(u, of_layer, segment, S, me);
      stream_back<H, THREADS>(u, layers + l * (3 * H * H), dout, x.numbers, states.numbers, me);
    }
    write_rows<SEGMENTS, STEPS, H, THREADS>(dout, to.dx, segment, S, me);
  }
  BARRIER
  block_sums<6>(sums.of, part, me, (uint)THREADS);
#pragma unroll
  for (int row = 0; row < 6; ++row)
    if (me == 0) partial[(uint)row * (uint)BLOCKS + block] = sums.of[row];
}

// Compute the weights' gradients (SLICES, P) of encoder, decoder and layers from the factors of n samples. The samples are divided into
// SLICES equal slices. A block computes a tile (128, 128) of one product for one slice, and 32 threads compute (64, 32) of the tile. The
// samples are multiplied in steps of STEP; STAGES - 1 steps are copied while one is multiplied.
KERNEL wide_gradients<Low, D, H, L, A, SLICES, THREADS, RESIDENT, POOL>: Low factors, int shape{n} -> float grads {
  constexpr uint SIDE = 128, STEP = 64, STAGES = 3, W = (D + 31) / 32 * 32, DY = A + 1 > 32 ? 64 : 32;
  constexpr uint ACROSS = (H + 127) / 128, OF_LAYER = (3 * H + 127) / 128 * ACROSS, SEEN = (W + 127) / 128, PLACE = STEP * SIDE;
  constexpr uint P = H * D + (A + 1) * H + L * 3 * H * H, WIDTH = 16 / sizeof(Low);
  static_assert(THREADS == 256 && 2 * STAGES * PLACE * sizeof(Low) <= 4 * POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED Low* places = (IN_SHARED Low*)(IN_SHARED void*)pool;
  uint n = (uint)shape.n, tile = block / SLICES, slice = block % SLICES, steps = n / SLICES / STEP;
  bool of_layer = tile < L * OF_LAYER, of_encoder = !of_layer && tile < L * OF_LAYER + ACROSS * SEEN;
  uint l = of_layer ? tile / OF_LAYER : L;
  uint product_tile = of_layer ? tile % OF_LAYER : of_encoder ? tile - L * OF_LAYER : tile - L * OF_LAYER - ACROSS * SEEN;
  uint beside = of_encoder ? SEEN : ACROSS, down = product_tile / beside * SIDE, across = product_tile % beside * SIDE;
  auto of = factors_of<H, L, DY>(factors, n);
  uint left_width = of_layer ? 3 * H : of_encoder ? H : DY, right_width = of_encoder ? W : H;
  uint height = of_layer ? 3 * H : of_encoder ? H : A + 1, width = of_encoder ? D : H;
  IN_DEVICE const Low* left = (of_layer ? of.dus + l * n * (3 * H) : of_encoder ? of.dx : of.dys) + slice * steps * STEP * left_width + down;
  IN_DEVICE const Low* right = (of_encoder ? of.rows : of.xs + l * n * H) + slice * steps * STEP * right_width + across;
  uint row = me / 32 % 2 * 64, column = me / 64 * 32;
  float sums[4][4][4];
  clear(sums);
  for (uint step = 0; step < steps + STAGES - 1; ++step) {
    if (step >= STAGES - 1) {  // wait for the copy that started STAGES - 1 steps ago
      WAIT_FOR_COPIES(1)
      BARRIER
    }
    for (uint k = me; step < steps && k < STEP * (SIDE / WIDTH); k += THREADS) {
      uint sample = k / (SIDE / WIDTH), at = k % (SIDE / WIDTH) * WIDTH;
      Swizzled<Low, SIDE> a = {places + step % STAGES * (2 * PLACE)}, b = {places + step % STAGES * (2 * PLACE) + PLACE};
      if (down + at < left_width) copy_line(left + (step * STEP + sample) * left_width + at, a.numbers + a.place(sample, at));
      if (across + at < right_width) copy_line(right + (step * STEP + sample) * right_width + at, b.numbers + b.place(sample, at));
    }
    END_OF_COPIES
    if (step >= STAGES - 1) {
      IN_SHARED Low* now = places + (step + 1) % STAGES * (2 * PLACE);
      Swizzled<Low, SIDE> a = {now}, b = {now + PLACE};
      add_product<0, STEP, 4, 4, 8>(transposed(a), row, b, column, me, sums);
    }
  }
  IN_DEVICE float* mine = grads + slice * P + (of_encoder ? 0u : H * D + (of_layer ? (A + 1) * H + l * (3 * H * H) : 0u));
#pragma unroll
  for (int v = 0; v < 64; ++v) {
    uint p = down + row + (uint)(v / 16) * 16 + row_of(v % 4, me), q = across + column + (uint)(v / 4 % 4) * 8 + column_of(v % 4, me);
    if (p < height && q < width) mine[p * width + q] = sums[v / 16][v / 4 % 4][v % 4];
  }
}
