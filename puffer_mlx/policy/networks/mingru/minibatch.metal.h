// A minibatch's gradients in one launch, of a linear encoder, MinGRU layers and a linear decoder, with PPO's loss of choices or numbers.
//
// A block takes SEGMENTS segments at a time through the network and back. Their activations stay in its shared memory, in
// Low, STEPS steps of them at a time; with fewer than T, the forward pass keeps the states between such chunks, and the
// backward pass computes a chunk's activations again. The gradients by the weights stay in its threads' registers until it
// has taken all of its segments; the kernel after this one adds up the blocks'. Products are those of matrix units.
//
// A row is a step of a segment: t SEGMENTS + s. observations (T, N, D) are float or bytes, of which the S agents from strip[0]
// on count, masks (T, S, A), actions (T, S, HEADS); HEADS is 0 of numbers: then they are (T, S, A), and have logstd (1, A) and
// means that count as at most settings[5] from 0. Weights are as in the checkpoint, from the encoder (H, D) to layers (3H, H).
// One of two:
//   LIVE      advantages are of the values of this forward pass, of `given` (T, S), which are rewards, `further`, which are
//             terminals, and `last`, finals; their numbers are settings[6] and those behind it
//   else      `given` are advantages, `further` their weights, `last` moments, as in loss.metal.h
// sizes: of the heads. shape: S; a step of `keep`, and of `first`: 1, or 0 where one number is all of them; G and R of
// loss.metal.h; of live advantages whether their form is V, whether truncation bootstraps, whether there are ratios, finals;
// N.
// What shared memory has room for besides a chunk's activations: KEPT, of the weights 1 the decoder's, 2 the layers', too, 3
// all; ALL, every layer's gates and states, and the observations: else they are made, or read, again.

#pragma once

#include "walks.metal.h"

// A weight's gradient (ROWS, COLUMNS) over M rows: each 32 threads have (16 R, 8 C) of it, or nothing.
template <int EXACT, int M, int ROWS, int COLUMNS, int R, int C, class Left, class Right>
FUNCTION void add_gradient(Left left, Right right, uint me, IN_THREAD float (&sums)[R][C][4]) {
  constexpr uint ACROSS = COLUMNS / 8 / C, ITEMS = ROWS / 16 / R * ACROSS;
  uint item = me / 32;
  if (item < ITEMS) add_product<EXACT, M, R, C, 8>(left, item / ACROSS * 16 * R, right, item % ACROSS * 8 * C, me, sums);
}

// Those of its numbers that are there, (rows, columns), to memory.
template <int ROWS, int COLUMNS, int R, int C>
FUNCTION void store_gradient(IN_DEVICE float* to, uint rows, uint columns, uint me, IN_THREAD const float (&sums)[R][C][4]) {
  constexpr uint ACROSS = COLUMNS / 8 / C, ITEMS = ROWS / 16 / R * ACROSS;
  uint item = me / 32;
  if (item >= ITEMS) return;
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        uint row = (item / ACROSS * R + (uint)i) * 16 + row_of(v, me), column = (item % ACROSS * C + (uint)j) * 8 + column_of(v, me);
        if (row < rows && column < columns) to[row * columns + column] = sums[i][j][v];
      }
}

KERNEL minibatch<Low, Observed, BLOCKS, T, D, H, L, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS, KEPT, ALL, EXACT, POOL, HIDDEN_C,
                 GATE_R, GATE_C, INPUT_R, INPUT_C, OUTPUT_C>:
  Observed observations, float actions, uint8_t masks, float keep old_logprob old_value given further last first0 first1 first2
  first3 encoder decoder logstd layer0 layer1 layer2 layer3 ent_coef settings, int sizes shape strip
  -> float grads partial ratio value adv begins {
  constexpr int M = SEGMENTS * STEPS, CHUNKS = T / STEPS, TIMES = T * SEGMENTS, UNITS = SEGMENTS * H;
  constexpr int LOW = sizeof(Low) == 2 ? 1 : 0, SEEN = LOW ? (D + 15) / 16 * 16 : (D + 7) / 8 * 8;
  constexpr int OUT = (A + 16) / 16 * 16, DY = OUT > 32 ? 64 : 32, Y = OUT + 1, W = (SEEN + 31) / 32 * 32;
  constexpr int LINE = 128 / sizeof(Observed), LINES = (D + LINE - 1) / LINE;  // of a row of observations, 128 bytes each
  constexpr int ACTS = HEADS > 0 ? HEADS : A, NUMBERS = HEADS > 0 ? 0 : A;  // of a sample
  constexpr int U = ALL || 3 * H > W ? 3 * H : W, COPIES = ALL ? L : 1;
  // Where arrays begin: those of float, then those of Low.
  constexpr int AT_KEEP = M * Y, AT_ROWS = AT_KEEP + M, AT_TIMES = AT_ROWS + M * (ACTS + (LIVE ? 2 : 4));
  constexpr int AT_CARRY = AT_TIMES + (LIVE ? 6 * TIMES : 0), FLOATS = (AT_CARRY + (CHUNKS > 1 ? L * UNITS : 0) + 31) / 32 * 32;
  constexpr int AT_U = (L + 1) * M * H, AT_S = AT_U + COPIES * M * U, AT_DY = AT_S + COPIES * M * H, AT_SEEN = AT_DY + M * DY;
  constexpr int AT_DECODER = AT_SEEN + (ALL ? M * W : 0), AT_LAYERS = AT_DECODER + (KEPT > 0 ? OUT * H : 0);
  constexpr int AT_ENCODER = AT_LAYERS + (KEPT > 1 ? L * 3 * H * H : 0), LOWS = AT_ENCODER + (KEPT > 2 ? H * W : 0);
  // Of a channel's steps so many threads have a part each.
  constexpr bool DIVIDED = UNITS < THREADS && THREADS % UNITS == 0 && STEPS % (THREADS / UNITS) == 0 && M * Y >= 2 * THREADS;
  constexpr int PARTS = DIVIDED ? THREADS / UNITS : 1;
  static_assert(M <= THREADS && THREADS <= M * U && OUT <= DY && T % STEPS == 0, "no such division");
  static_assert(4 * FLOATS + (LOW ? 2 : 4) * LOWS <= 4 * POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED float *y = pool, *kept = pool + AT_KEEP, *acted = pool + AT_ROWS, *old_logprobs = acted + M * ACTS;
  IN_SHARED float *old_values = old_logprobs + M, *targets = old_values + M, *shares = targets + M;
  IN_SHARED float *values = pool + AT_TIMES, *advantages = values + TIMES, *rewards = advantages + TIMES;
  IN_SHARED float *terminals = rewards + TIMES, *finals = terminals + TIMES, *ratios = finals + TIMES, *carries = pool + AT_CARRY;
  IN_SHARED Low* low = (IN_SHARED Low*)(pool + FLOATS);
  IN_SHARED float* part = pool + FLOATS + (LOW ? AT_U / 2 : AT_U);
  Apart<Y> of_y = {y};
  Swizzled<Low, DY> dy = {low + AT_DY};
  Swizzled<Low, H> dout = {low + L * M * H}, decodes = {low + AT_DECODER};
  Swizzled<Low, W> seen = {low + (ALL ? AT_SEEN : AT_U)}, encodes = {low + AT_ENCODER};
  const uint S = (uint)shape[0], keep_step = (uint)shape[1], first_step = (uint)shape[2], n = (uint)T * S;
  const uint N = (uint)shape[9], first_agent = (uint)strip[0];
  const bool has_ratios = shape[7] != 0;
  float mean = 0.0f, deviation = 1.0f, entropy_weight = ent_coef[0], vf_coef = settings[3], limit = settings[5];
  int heads[HEADS + 1];
#pragma unroll
  for (int head = 0; head < HEADS; ++head) heads[head] = sizes[head];
  if (!LIVE) spread_of(last, n, (uint)shape[3], (uint)shape[4], part, me, (uint)THREADS, mean, deviation);
  auto decoding = Either<(KEPT > 0)>::of(decodes, Padded<H>{decoder, A + 1, H});
  auto encoding = Either<(KEPT > 2)>::of(encodes, Padded<D>{encoder, H, D});
  if (KEPT > 0) keep_weight<OUT, H, THREADS>(decoder, A + 1, H, decodes, me);
#pragma unroll
  for (int l = 0; l < L && KEPT > 1; ++l)
    keep_weight<3 * H, H, THREADS>(OF_LAYER(layer, l), 3 * H, H, Swizzled<Low, H>{low + AT_LAYERS + 3 * l * H * H}, me);
  if (KEPT > 2) keep_weight<H, W, THREADS>(encoder, H, D, encodes, me);
  for (uint k = me; k < M * DY; k += THREADS) dy.put(k / DY, k % DY, 0.0f);

  float of_encoder[INPUT_R][INPUT_C][4], of_decoder[1][OUTPUT_C][4], of_layers[L][GATE_R][GATE_C][4];
  clear(of_encoder);
  clear(of_decoder);
#pragma unroll
  for (int l = 0; l < L; ++l) clear(of_layers[l]);
  float of_logstd[NUMBERS + 1];
#pragma unroll
  for (int k = 0; k < NUMBERS; ++k) of_logstd[k] = 0.0f;
  SampleSums sums;
#pragma unroll
  for (int row = 0; row < 6; ++row) sums.of[row] = 0.0f;
  PPONumbers numbers = {settings[0], settings[1], settings[2], settings[4]};

  for (uint segment = block * SEGMENTS; segment < S; segment += (uint)(BLOCKS * SEGMENTS)) {
    for (int k = (int)me; LIVE && k < TIMES; k += THREADS) {
      uint at = (uint)(k / SEGMENTS) * S + segment + (uint)(k % SEGMENTS);
      rewards[k] = given[at], terminals[k] = further[at], finals[k] = shape[8] != 0 ? last[at] : 0.0f;
      ratios[k] = 1.0f;
    }
    // Forward in time, chunk by chunk, then back; the last chunk is still there when that begins.
    for (int turn = 0; turn < 2 * CHUNKS; ++turn) {
      bool back = turn >= CHUNKS;
      int chunk = back ? 2 * CHUNKS - 1 - turn : turn;
      if (turn != CHUNKS) {
        BARRIER
        for (int row = (int)me; row < M; row += THREADS) {
          uint sample = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
          kept[row] = keep[sample * keep_step];
          old_logprobs[row] = old_logprob[sample], old_values[row] = old_value[sample];
          if (!LIVE) targets[row] = given[sample], shares[row] = further[sample];
#pragma unroll
          for (int k = 0; k < ACTS; ++k) acted[row * ACTS + k] = actions[sample * (uint)ACTS + (uint)k];
        }
        see<SEGMENTS, STEPS, D, SEEN, THREADS>(observations, seen, chunk, first_agent + segment, N, me);
        uint next = segment + (uint)(BLOCKS * SEGMENTS);  // what this block reads next is on its way meanwhile
        for (int k = (int)me; next < S && k < M * LINES; k += THREADS) {
          uint sample = sample_of<SEGMENTS, STEPS>(k / LINES, chunk, first_agent + next, N);
          PREFETCH(observations + sample * (uint)D + (uint)(k % LINES * LINE))
        }
        for (int k = (int)me; next < S && k < STEPS; k += THREADS) {
          uint sample = sample_of<SEGMENTS, STEPS>(k * SEGMENTS, chunk, next, S);
          PREFETCH(old_logprob + sample)
          PREFETCH(old_value + sample)
          PREFETCH(given + sample)
          PREFETCH(further + sample)
          PREFETCH(actions + sample * ACTS)
        }
        BARRIER
        Swizzled<Low, H> features = {low};
        multiply_rows<EXACT, SEEN, M, H, HIDDEN_C, THREADS>(seen, transposed(encoding), features, false, me);
        BARRIER
#pragma unroll
        for (int l = 0; l < L; ++l) {
          Swizzled<Low, H> x = {low + l * M * H}, out = {low + (l + 1) * M * H};
          Swizzled<Low, H> states = {low + AT_S + (ALL ? l : 0) * M * H}, held = {low + AT_LAYERS + 3 * l * H * H};
          Swizzled<Low, U> u = {low + AT_U + (ALL ? l : 0) * M * U};
          auto weight = Either<(KEPT > 1)>::of(held, Padded<H>{OF_LAYER(layer, l), 3 * H, H});
          make_gates<EXACT, H, M, THREADS>(x, transposed(weight), u, me);
          BARRIER
          for (uint k = me; k < UNITS * PARTS; k += THREADS) {
            uint unit = segment * (uint)H + k % UNITS, begin = (uint)(chunk * L + l) * S * (uint)H + unit;
            float state = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
            state = walk<STEPS, SEGMENTS, H, PARTS>(u, states, kept, y, y + THREADS, k, state);
            if (!back && chunk + 1 < CHUNKS && k >= UNITS * (PARTS - 1)) begins[begin + (uint)(L * H) * S] = state;
          }
          BARRIER
          for (uint k = me; k < M * H; k += THREADS) {
            uint row = k / H, channel = k % H;
            out.put(row, channel, mingru_out(u.at(row, channel + 2 * H), x.at(row, channel), states.at(row, channel)));
          }
          BARRIER
        }
        multiply_rows<EXACT, H, M, OUT, 1, THREADS>(dout, transposed(decoding), of_y, false, me);
        BARRIER
      }
#include "live.metal.h"
      if (!back) continue;

#include "loss.metal.h"
      BARRIER
      add_gradient<EXACT, M, OUT, H, 1, OUTPUT_C>(transposed(dy), dout, me, of_decoder);
      BARRIER
      multiply_rows<EXACT, OUT, M, H, HIDDEN_C, THREADS>(dy, decoding, dout, false, me);
      BARRIER
#pragma unroll
      for (int l = L - 1; l >= 0; --l) {
        Swizzled<Low, H> x = {low + l * M * H}, states = {low + AT_S + (ALL ? l : 0) * M * H};
        Swizzled<Low, H> held = {low + AT_LAYERS + 3 * l * H * H};
        Swizzled<Low, U> u = {low + AT_U + (ALL ? l : 0) * M * U};
        auto weight = Either<(KEPT > 1)>::of(held, Padded<H>{OF_LAYER(layer, l), 3 * H, H});
        bool again = l < L - 1 && !ALL;
        if (again) {
          make_gates<EXACT, H, M, THREADS>(x, transposed(weight), u, me);
          BARRIER
        }
        for (uint k = me; k < UNITS * PARTS; k += THREADS) {
          uint unit = segment * (uint)H + k % UNITS, begin = (uint)(chunk * L + l) * S * (uint)H + unit;
          float first = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
          float carry = chunk + 1 < CHUNKS ? carries[(uint)(l * UNITS) + k % UNITS] : 0.0f;
          if (again) walk<STEPS, SEGMENTS, H, PARTS>(u, states, kept, y, y + THREADS, k, first);
          if (PARTS > 1) BARRIER
          carry = walk_back<STEPS, SEGMENTS, H, PARTS>(u, x, dout, states, kept, y, y + THREADS, k, first, carry);
          if (CHUNKS > 1 && k < UNITS) carries[(uint)(l * UNITS) + k] = carry;
        }
        BARRIER
        add_gradient<EXACT, M, 3 * H, H, GATE_R, GATE_C>(transposed(u), x, me, of_layers[l]);
        multiply_rows<EXACT, 3 * H, M, H, HIDDEN_C, THREADS>(u, weight, dout, true, me);
        BARRIER
      }
      if (!ALL) {
        see<SEGMENTS, STEPS, D, SEEN, THREADS>(observations, seen, chunk, first_agent + segment, N, me);
        BARRIER
      }
      add_gradient<EXACT, M, H, SEEN, INPUT_R, INPUT_C>(transposed(dout), seen, me, of_encoder);
    }
  }

  IN_DEVICE float* mine = grads + block * (uint)(H * D + (A + 1) * H + L * 3 * H * H + NUMBERS);
  store_gradient<H, SEEN>(mine, (uint)H, (uint)D, me, of_encoder);
  mine += H * D;
  store_gradient<OUT, H>(mine, (uint)(A + 1), (uint)H, me, of_decoder);
  mine += (A + 1) * H;
#pragma unroll
  for (int l = 0; l < L; ++l) store_gradient<3 * H, H>(mine + l * 3 * H * H, (uint)(3 * H), (uint)H, me, of_layers[l]);
  mine += L * 3 * H * H;
#pragma unroll
  for (int k = 0; k < NUMBERS; ++k) {
    float slope = block_sum(of_logstd[k], part, me, (uint)THREADS);
    if (me == 0) mine[k] = slope - (block == 0 ? entropy_weight : 0.0f);  // the entropy is the same for all samples
  }
#pragma unroll
  for (int row = 0; row < 6; ++row) {
    float sum = block_sum(sums.of[row], part, me, (uint)THREADS);
    if (me == 0) partial[(uint)row * (uint)BLOCKS + block] = sum;
  }
}
