// Compute a minibatch's gradients in one launch: linear encoder, a network's layers, linear decoder, and PPO's loss. A layer's passes
// are layer_forward and layer_backward of walks.metal.h in the network's folder. Products use matrix units.
//
// A block computes the forward and backward pass of SEGMENTS segments at a time, in chunks of STEPS steps. A chunk's activations are in
// shared memory, of type Low. With several chunks, the forward pass stores the states between the chunks in `begins`, and the backward
// pass computes each chunk's activations again. The weights' gradients stay in registers until the block has processed all of its
// segments. `add_blocks` then sums the gradients of all blocks.
//
// Row t SEGMENTS + s of a chunk is step t of segment s. Inputs:
//
//   observations (T, N, D)   float or bytes. The minibatch has the S agents from agents[0] on.
//   actions (T, S, HEADS)    HEADS is 0 for continuous actions (T, S, A), with logstd (1, A) and means clamped to `limit`
//   masks (T, S, A)          action masks
//   not_done (T, S)          0 in the first step of an episode, else 1. If shape.not_done_step is 0: the number 1 for all steps
//   old_logprob, old_value   log-probabilities and values recorded in the rollout, (T, S)
//   first0 to first3 (S, H)  initial recurrent states of each layer. If shape.first_step is 0: the number 0 for all of them
//   encoder (WIDTH, D), layer0 to layer3 (3 WIDTH, WIDTH), decoder (A + 1, WIDTH)   weights, stored as in a checkpoint
//   sizes (HEADS,)           number of choices of each head
//
//                            LIVE: advantages are computed from this pass's values     otherwise
//   adv_or_rewards           rewards (T, S)                                            advantages (T, S)
//   weight_or_terminals      terminals (T, S)                                          weights of the samples (T, S)
//   moments_or_final         final_observations (T, S)                                 moments (R, 3, G), see loss.metal.h
//
// Outputs:
//
//   grads (BLOCKS, P)        each block's gradients with respect to encoder, decoder, layers and logstd, one after the other
//   partial (6, BLOCKS)      each block's sums of loss terms, see SampleSums
//   ratio, value, adv (T, S) ratios of new to old probabilities, values, advantages
//
// Template constants:
//
//   BLOCKS, THREADS, POOL   number of blocks; threads and floats of shared memory of each
//   MASKED, LIVE            1 with action masks; 1 for advantages computed from this pass's values
//   EXACT                   1 for products in float32 precision, 0 for TF32
//   HIDDEN_C                tiles of 8 columns that 32 threads multiply at a time, for products with H columns
//   GATE_R and GATE_C, INPUT_R and INPUT_C, OUTPUT_C   rows and columns of tiles (16, 8) that 32 threads hold of the gradients of a layer,
//                           the encoder and the decoder
//   WIDTH, H   the network's hidden size, and this size rounded up to a multiple of 32. The units beyond WIDTH have weights 0 and
//              don't affect the outputs. If WIDTH < H, KEPT must be at least 2.
//   KEPT       weights cached in shared memory. 0: none; 1: the decoder's; 2: also the layers'; 3: all.
//   ALL        1 to cache every layer's gates and states and the observations; 0 to compute or load them again

#pragma once

#include "samples.metal.h"

KERNEL minibatch<Low, Observed, BLOCKS, T, D, H, WIDTH, L, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS, KEPT, ALL, EXACT, POOL, HIDDEN_C,
                 GATE_R, GATE_C, INPUT_R, INPUT_C, OUTPUT_C>:
  Observed observations, float actions, uint8_t masks, float not_done old_logprob old_value adv_or_rewards weight_or_terminals
  moments_or_final first0 first1 first2 first3 encoder decoder logstd layer0 layer1 layer2 layer3 ent_coef settings{ratio_low ratio_high
  clip vf_clip vf_coef limit gamma gamma_lambda rho_clip c_clip reward_clip},
  int sizes shape{S N not_done_step first_step G R within_rho bootstrap has_ratios has_final} agents
  -> float grads partial ratio value adv begins {
  using Tile = BlockRows<T, H, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS>;
  // M: rows of a chunk. OUT, DY: outputs of the decoder, padded for products, and their distance in `dy`. SEEN, W: size of an observation,
  // padded for products, and the distance of observations in shared memory. U: gates per row. COPIES: layers whose gates are cached.
  constexpr int LAYER = 3 * H * H, M = Tile::M, CHUNKS = Tile::CHUNKS, OUT = Tile::OUT, DY = OUT > 32 ? 64 : 32;
  constexpr int LOW = sizeof(Low) == 2 ? 1 : 0, SEEN = LOW ? (D + 15) / 16 * 16 : (D + 7) / 8 * 8, W = (SEEN + 31) / 32 * 32;
  constexpr int FLOATS = (Tile::SIZE + (CHUNKS > 1 ? L * Tile::UNITS : 0) + 31) / 32 * 32;
  constexpr int LINE = 128 / sizeof(Observed), LINES = (D + LINE - 1) / LINE;  // elements per 128-byte cache line; lines per observation
  constexpr int U = ALL || 3 * H > W ? 3 * H : W, COPIES = ALL ? L : 1;
  // Offsets of the arrays of type Low, in elements.
  constexpr int AT_U = (L + 1) * M * H, AT_S = AT_U + COPIES * M * U, AT_DY = AT_S + COPIES * M * H, AT_SEEN = AT_DY + M * DY;
  constexpr int AT_DECODER = AT_SEEN + (ALL ? M * W : 0), AT_LAYERS = AT_DECODER + (KEPT > 0 ? OUT * H : 0);
  constexpr int AT_ENCODER = AT_LAYERS + (KEPT > 1 ? L * LAYER : 0), LOWS = AT_ENCODER + (KEPT > 2 ? H * W : 0);
  static_assert(M <= THREADS && THREADS <= M * U && OUT <= DY && T % STEPS == 0, "no such division");
  static_assert(4 * FLOATS + (LOW ? 2 : 4) * LOWS <= 4 * POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED Low* low = (IN_SHARED Low*)(IN_SHARED void*)(pool + FLOATS);
  // The memory of the gates at AT_U is shared: `part` is for sums over the block, and `seen` is also there unless ALL.
  IN_SHARED float *part = pool + FLOATS + (LOW ? AT_U / 2 : AT_U), *carries = pool + Tile::SIZE;
  Swizzled<Low, DY> dy = {low + AT_DY};
  Swizzled<Low, H> features = {low}, dout = {low + L * M * H}, decodes = {low + AT_DECODER};
  Swizzled<Low, W> seen = {low + (ALL ? AT_SEEN : AT_U)}, encodes = {low + AT_ENCODER};
  const uint S = (uint)shape.S, not_done_step = (uint)shape.not_done_step, first_step = (uint)shape.first_step, n = (uint)T * S;
  const uint N = (uint)shape.N, first_agent = (uint)agents[0];
  const bool has_ratios = shape.has_ratios != 0;
  Tile rows(pool, S, me, sizes, settings.limit);
  PPOCoefficients coefficients = {settings.ratio_low, settings.ratio_high, settings.clip, settings.vf_clip, settings.vf_coef,
                                  ent_coef[0]};
  SampleSums sums = {};
  if (!LIVE) spread_of(moments_or_final, n, (uint)shape.G, (uint)shape.R, part, me, (uint)THREADS, rows.mean, rows.deviation);
  auto decoding = Either<(KEPT > 0)>::of(decodes, Padded<WIDTH>{decoder, A + 1, WIDTH});
  auto encoding = Either<(KEPT > 2)>::of(encodes, Padded<D>{encoder, WIDTH, D});
  if (KEPT > 0) keep_weight<OUT, H, THREADS>(decoder, A + 1, WIDTH, decodes, me);
#pragma unroll
  for (int l = 0; l < L && KEPT > 1; ++l)
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      keep_weight<H, H, THREADS>(OF_LAYER(layer, l) + gate * WIDTH * WIDTH, WIDTH, WIDTH,
                                 Swizzled<Low, H>{low + AT_LAYERS + l * LAYER + gate * H * H}, me);
  if (KEPT > 2) keep_weight<H, W, THREADS>(encoder, WIDTH, D, encodes, me);
  for (uint k = me; k < M * DY; k += THREADS) dy.put(k / DY, k % DY, 0.0f);

  float of_encoder[INPUT_R][INPUT_C][4], of_decoder[1][OUTPUT_C][4], of_layers[L][GATE_R][GATE_C][4];
  clear(of_encoder);
  clear(of_decoder);
#pragma unroll
  for (int l = 0; l < L; ++l) clear(of_layers[l]);

  for (uint segment = block * SEGMENTS; segment < S; segment += (uint)(BLOCKS * SEGMENTS)) {
    load_rewards(rows, segment, adv_or_rewards, weight_or_terminals, moments_or_final, shape.has_final != 0);
    // Turns before CHUNKS are the forward pass of a chunk. The later turns are the backward pass, from the last chunk to the first. They
    // compute the chunk's activations again, except those of the last chunk, which are still in shared memory.
    for (int turn = 0; turn < 2 * CHUNKS; ++turn) {
      bool back = turn >= CHUNKS;
      int chunk = back ? 2 * CHUNKS - 1 - turn : turn;
      if (turn != CHUNKS) {
        DEVICE_BARRIER
        load_rows(rows, chunk, segment, actions, not_done, not_done_step, old_logprob, old_value, adv_or_rewards, weight_or_terminals);
        load_observations<SEGMENTS, STEPS, D, SEEN, THREADS>(observations, seen, chunk, first_agent + segment, N, me);
        uint next = segment + (uint)(BLOCKS * SEGMENTS);  // prefetch the next segments; observations are (T, N), other arrays (T, S)
        for (int k = (int)me; next < S && k < M * LINES; k += THREADS) {
          uint sample = sample_of<SEGMENTS, STEPS>(k / LINES, chunk, first_agent + next, N);
          PREFETCH(observations + sample * (uint)D + (uint)(k % LINES * LINE))
        }
        for (int k = (int)me; next < S && k < STEPS; k += THREADS) {
          uint sample = sample_of<SEGMENTS, STEPS>(k * SEGMENTS, chunk, next, S);
          PREFETCH(old_logprob + sample)
          PREFETCH(old_value + sample)
          PREFETCH(adv_or_rewards + sample)
          PREFETCH(weight_or_terminals + sample)
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
          layer_forward<EXACT, H, WIDTH>(rows, x, out, u, states, weight, OF_LAYER(first, l), first_step, begins,
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
        layer_backward<EXACT, H, WIDTH>(rows, l < L - 1 && !ALL, x, dout, u, states, weight, OF_LAYER(first, l), first_step,
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

  IN_DEVICE float* mine = grads + block * (uint)(WIDTH * D + (A + 1) * WIDTH + L * 3 * WIDTH * WIDTH + Tile::MEANS);
  store_gradient<H, SEEN, 1>(mine, (uint)WIDTH, (uint)D, me, of_encoder);
  mine += WIDTH * D;
  store_gradient<OUT, H, 1>(mine, (uint)(A + 1), (uint)WIDTH, me, of_decoder);
  mine += (A + 1) * WIDTH;
#pragma unroll
  for (int l = 0; l < L; ++l) {
    store_gradient<3 * H, H, 3>(mine, (uint)WIDTH, (uint)WIDTH, me, of_layers[l]);
    mine += 3 * WIDTH * WIDTH;
  }
#pragma unroll
  for (int k = 0; k < Tile::MEANS; ++k) {
    float slope = block_sum(rows.by_logstd[k], part, me, (uint)THREADS);
    // The entropy's gradient doesn't depend on the sample, so only the first block adds it.
    if (me == 0) mine[k] = slope - (block == 0 ? coefficients.ent_coef : 0.0f);
  }
#pragma unroll
  for (int row = 0; row < 6; ++row) {
    float sum = block_sum(sums.of[row], part, me, (uint)THREADS);
    if (me == 0) partial[(uint)row * (uint)BLOCKS + block] = sum;
  }
}
