// A minibatch's gradients in one launch, of a linear encoder, a network's layers and a linear decoder, with PPO's loss of choices or
// numbers. `forward` and `back` are the network's: a chunk of a layer, forward.metal.h and back.metal.h in its folder.
//
// A block takes SEGMENTS segments at a time through the network and back. Their activations stay in its shared memory, in
// Low, STEPS steps of them at a time; with fewer than T, the forward pass keeps the states between such chunks, and the
// backward pass computes a chunk's activations again. The gradients by the weights stay in its threads' registers until it
// has taken all of its segments; the kernel after this one adds up the blocks'. Products are those of matrix units.
//
// A row is a step of a segment: t SEGMENTS + s. observations (T, N, D) are float or bytes, of which the S agents from strip[0]
// on count, masks (T, S, A), actions (T, S, HEADS); HEADS is 0 of numbers: then they are (T, S, A), and have logstd (1, A) and
// means that count as at most settings[5] from 0. Weights are as in the checkpoint: the encoder's (H, D), a layer's (3H, H).
// For its backward pass a layer stores 3H gates of each row in `u`, which the gradients by them replace, and its states (M, H).
// `back` leaves in `dout` the highway's part of the gradient by the input.
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

#include "samples.metal.h"

KERNEL minibatch<Low, Observed, BLOCKS, T, D, H, L, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS, KEPT, ALL, EXACT, POOL, HIDDEN_C,
                 GATE_R, GATE_C, INPUT_R, INPUT_C, OUTPUT_C>:
  Observed observations, float actions, uint8_t masks, float keep old_logprob old_value given further last first0 first1 first2
  first3 encoder decoder logstd layer0 layer1 layer2 layer3 ent_coef settings{ratio_low ratio_high clip vf_clip vf_coef limit gamma gamma_lambda rho_clip c_clip reward_clip},
  int sizes shape{S N keep_step first_step G R within_rho bootstrap has_ratios has_finals} strip
  -> float grads partial ratio value adv begins {
  using Tile = BlockRows<T, H, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS>;
  constexpr int LAYER = 3 * H * H, M = Tile::M, CHUNKS = Tile::CHUNKS, OUT = Tile::OUT, DY = OUT > 32 ? 64 : 32;
  constexpr int LOW = sizeof(Low) == 2 ? 1 : 0, SEEN = LOW ? (D + 15) / 16 * 16 : (D + 7) / 8 * 8, W = (SEEN + 31) / 32 * 32;
  constexpr int FLOATS = (Tile::SIZE + (CHUNKS > 1 ? L * Tile::UNITS : 0) + 31) / 32 * 32;
  constexpr int LINE = 128 / sizeof(Observed), LINES = (D + LINE - 1) / LINE;  // of a row of observations, 128 bytes each
  constexpr int U = ALL || 3 * H > W ? 3 * H : W, COPIES = ALL ? L : 1;
  // Where arrays of Low begin.
  constexpr int AT_U = (L + 1) * M * H, AT_S = AT_U + COPIES * M * U, AT_DY = AT_S + COPIES * M * H, AT_SEEN = AT_DY + M * DY;
  constexpr int AT_DECODER = AT_SEEN + (ALL ? M * W : 0), AT_LAYERS = AT_DECODER + (KEPT > 0 ? OUT * H : 0);
  constexpr int AT_ENCODER = AT_LAYERS + (KEPT > 1 ? L * LAYER : 0), LOWS = AT_ENCODER + (KEPT > 2 ? H * W : 0);
  static_assert(M <= THREADS && THREADS <= M * U && OUT <= DY && T % STEPS == 0, "no such division");
  static_assert(4 * FLOATS + (LOW ? 2 : 4) * LOWS <= 4 * POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED Low* low = (IN_SHARED Low*)(IN_SHARED void*)(pool + FLOATS);
  IN_SHARED float *part = pool + FLOATS + (LOW ? AT_U / 2 : AT_U), *carries = pool + Tile::SIZE;
  Swizzled<Low, DY> dy = {low + AT_DY};
  Swizzled<Low, H> features = {low}, dout = {low + L * M * H}, decodes = {low + AT_DECODER};
  Swizzled<Low, W> seen = {low + (ALL ? AT_SEEN : AT_U)}, encodes = {low + AT_ENCODER};
  const uint S = (uint)shape.S, keep_step = (uint)shape.keep_step, first_step = (uint)shape.first_step, n = (uint)T * S;
  const uint N = (uint)shape.N, first_agent = (uint)strip[0];
  const bool has_ratios = shape.has_ratios != 0;
  Tile rows(pool, S, me, sizes, settings.limit);
  PPOCoefficients coefficients = {settings.ratio_low, settings.ratio_high, settings.clip, settings.vf_clip, settings.vf_coef,
                                  ent_coef[0]};
  SampleSums sums;
#pragma unroll
  for (int row = 0; row < 6; ++row) sums.of[row] = 0.0f;
  if (!LIVE) spread_of(last, n, (uint)shape.G, (uint)shape.R, part, me, (uint)THREADS, rows.mean, rows.deviation);
  auto decoding = Either<(KEPT > 0)>::of(decodes, Padded<H>{decoder, A + 1, H});
  auto encoding = Either<(KEPT > 2)>::of(encodes, Padded<D>{encoder, H, D});
  if (KEPT > 0) keep_weight<OUT, H, THREADS>(decoder, A + 1, H, decodes, me);
#pragma unroll
  for (int l = 0; l < L && KEPT > 1; ++l)
    keep_weight<3 * H, H, THREADS>(OF_LAYER(layer, l), 3 * H, H, Swizzled<Low, H>{low + AT_LAYERS + l * LAYER}, me);
  if (KEPT > 2) keep_weight<H, W, THREADS>(encoder, H, D, encodes, me);
  for (uint k = me; k < M * DY; k += THREADS) dy.put(k / DY, k % DY, 0.0f);

  float of_encoder[INPUT_R][INPUT_C][4], of_decoder[1][OUTPUT_C][4], of_layers[L][GATE_R][GATE_C][4];
  clear(of_encoder);
  clear(of_decoder);
#pragma unroll
  for (int l = 0; l < L; ++l) clear(of_layers[l]);

  for (uint segment = block * SEGMENTS; segment < S; segment += (uint)(BLOCKS * SEGMENTS)) {
    load_rewards(rows, segment, given, further, last, shape.has_finals != 0);
    // Forward in time, chunk by chunk, then back; the last chunk is still there when that begins.
    for (int turn = 0; turn < 2 * CHUNKS; ++turn) {
      bool back = turn >= CHUNKS;
      int chunk = back ? 2 * CHUNKS - 1 - turn : turn;
      if (turn != CHUNKS) {
        DEVICE_BARRIER
        load_rows(rows, chunk, segment, actions, keep, keep_step, old_logprob, old_value, given, further);
        load_observations<SEGMENTS, STEPS, D, SEEN, THREADS>(observations, seen, chunk, first_agent + segment, N, me);
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
          PREFETCH(actions + sample * Tile::ACTS)
        }
        BARRIER
        multiply_rows<EXACT, SEEN, M, H, HIDDEN_C, THREADS>(seen, transposed(encoding), features, false, me);
        BARRIER
#pragma unroll
        for (int l = 0; l < L; ++l) {
          Swizzled<Low, H> x = {low + l * M * H}, out = {low + (l + 1) * M * H}, states = {low + AT_S + (ALL ? l : 0) * M * H};
          Swizzled<Low, U> u = {low + AT_U + (ALL ? l : 0) * M * U};
          Swizzled<Low, H> held = {low + AT_LAYERS + l * LAYER};
          auto weight = Either<(KEPT > 1)>::of(held, Padded<H>{OF_LAYER(layer, l), 3 * H, H});
          layer_forward<EXACT, H>(rows, x, out, u, states, weight, OF_LAYER(first, l), first_step, begins,
                                  (uint)(chunk * L + l) * S * (uint)H, (uint)(L * H) * S, chunk, segment, !back);
        }
        multiply_rows<EXACT, H, M, OUT, 1, THREADS>(dout, transposed(decoding), Apart<Tile::Y>{rows.y}, false, me);
        BARRIER
      }
      if (LIVE && !back) store_values(rows, chunk, segment, has_ratios, masks, logstd);
      if (LIVE && turn == CHUNKS - 1) {
        Discounts by = {settings.gamma, settings.gamma_lambda, settings.rho_clip, settings.c_clip, settings.reward_clip,
                        shape.within_rho != 0, shape.bootstrap != 0};
        live_advantages(rows, by);
      }
      if (!back) continue;

      score_rows(rows, chunk, segment, coefficients, masks, logstd, dy, ratio, value, adv, sums);
      BARRIER
      add_gradient<EXACT, M, OUT, H, 1, OUTPUT_C>(transposed(dy), dout, me, of_decoder);
      BARRIER
      multiply_rows<EXACT, OUT, M, H, HIDDEN_C, THREADS>(dy, decoding, dout, false, me);
      BARRIER
#pragma unroll
      for (int l = L - 1; l >= 0; --l) {
        Swizzled<Low, H> x = {low + l * M * H}, states = {low + AT_S + (ALL ? l : 0) * M * H}, held = {low + AT_LAYERS + l * LAYER};
        Swizzled<Low, U> u = {low + AT_U + (ALL ? l : 0) * M * U};
        auto weight = Either<(KEPT > 1)>::of(held, Padded<H>{OF_LAYER(layer, l), 3 * H, H});
        layer_backward<EXACT, H>(rows, l < L - 1 && !ALL, x, dout, u, states, weight, OF_LAYER(first, l), first_step,
                                 begins, (uint)(chunk * L + l) * S * (uint)H, carries + l * Tile::UNITS, chunk, segment);
        BARRIER
        add_gradient<EXACT, M, 3 * H, H, GATE_R, GATE_C>(transposed(u), x, me, of_layers[l]);
        multiply_rows<EXACT, 3 * H, M, H, HIDDEN_C, THREADS>(u, weight, dout, true, me);
        BARRIER
      }
      if (!ALL) {
        load_observations<SEGMENTS, STEPS, D, SEEN, THREADS>(observations, seen, chunk, first_agent + segment, N, me);
        BARRIER
      }
      add_gradient<EXACT, M, H, SEEN, INPUT_R, INPUT_C>(transposed(dout), seen, me, of_encoder);
    }
  }

  IN_DEVICE float* mine = grads + block * (uint)(H * D + (A + 1) * H + L * LAYER + Tile::MEANS);
  store_gradient<H, SEEN>(mine, (uint)H, (uint)D, me, of_encoder);
  mine += H * D;
  store_gradient<OUT, H>(mine, (uint)(A + 1), (uint)H, me, of_decoder);
  mine += (A + 1) * H;
#pragma unroll
  for (int l = 0; l < L; ++l) {
    store_gradient<3 * H, H>(mine, (uint)(3 * H), (uint)H, me, of_layers[l]);
    mine += LAYER;
  }
#pragma unroll
  for (int k = 0; k < Tile::MEANS; ++k) {
    float slope = block_sum(rows.by_logstd[k], part, me, (uint)THREADS);
    if (me == 0) mine[k] = slope - (block == 0 ? coefficients.ent_coef : 0.0f);  // the entropy is the same for all samples
  }
#pragma unroll
  for (int row = 0; row < 6; ++row) {
    float sum = block_sum(sums.of[row], part, me, (uint)THREADS);
    if (me == 0) partial[(uint)row * (uint)BLOCKS + block] = sum;
  }
}
