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
// means that count as at most settings[5] from 0. Weights are as in the checkpoint: the encoder's (H, D), and of layers MATRICES
// (ROWS H, H) and as many BIASES (ROWS H,) or none, all layers in layer0 where a layer has several arrays.
// What a layer keeps for the way back: of each row GATES H numbers in `u`, where the gradients by its products take their place,
// and HELD arrays (M, H) from `states` on. The gradient by the first matrix is of u's first columns and the layer's input; that by
// the second of `states`, and where there are more GATES than ROWS the last takes the place of the one before. HIGHWAY: `back`
// leaves in `dout` a part of the gradient by the input. A layer has STATES; where its gates see them it is RECURRENT, and has in
// `carries` STATES gradients by those behind a chunk, and behind all layers' one state of its own at a time. NORM: behind the layers
// is the norm of a sum, whose weight (H,) follows the layers'.
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

#define WEIGHTS_OF(l) (MATRICES + BIASES > 1 ? layer0 + (l) * LAYER_AND_BIASES : OF_LAYER(layer, l))

KERNEL minibatch<Low, Observed, BLOCKS, T, D, H, L, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS, KEPT, ALL, EXACT, POOL, HIDDEN_C,
                 GATE_R, GATE_C, INPUT_R, INPUT_C, OUTPUT_C, GATES, ROWS, MATRICES, BIASES, HELD, STATES, RECURRENT, HIGHWAY, NORM>:
  Observed observations, float actions, uint8_t masks, float keep old_logprob old_value given further last first0 first1 first2
  first3 encoder decoder logstd layer0 layer1 layer2 layer3 ent_coef settings, int sizes shape strip
  -> float grads partial ratio value adv begins {
  constexpr int LAYER = MATRICES * ROWS * H * H, LAYER_AND_BIASES = LAYER + BIASES * ROWS * H;
  constexpr int AT_SCALES = (T > STEPS || RECURRENT ? L * STATES * SEGMENTS * H : 0) + (RECURRENT ? SEGMENTS * H : 0);
  constexpr int CARRIED = AT_SCALES + (NORM ? 2 * SEGMENTS * STEPS : 0);
#include "begin.metal.h"
  constexpr int LINE = 128 / sizeof(Observed), LINES = (D + LINE - 1) / LINE;  // of a row of observations, 128 bytes each
  constexpr int U = ALL || GATES * H > W ? GATES * H : W, COPIES = ALL ? L : 1;
  // Where arrays of Low begin.
  constexpr int AT_U = (L + 1) * M * H, AT_S = AT_U + COPIES * M * U, AT_DY = AT_S + COPIES * HELD * M * H, AT_SEEN = AT_DY + M * DY;
  constexpr int AT_DECODER = AT_SEEN + (ALL ? M * W : 0), AT_LAYERS = AT_DECODER + (KEPT > 0 ? OUT * H : 0);
  constexpr int AT_ENCODER = AT_LAYERS + (KEPT > 1 ? L * LAYER : 0), AT_NORMED = AT_ENCODER + (KEPT > 2 ? H * W : 0);
  constexpr int LOWS = AT_NORMED + (NORM ? M * H : 0);
  static_assert(M <= THREADS && THREADS <= M * U && OUT <= DY && T % STEPS == 0, "no such division");
  static_assert(4 * FLOATS + (LOW ? 2 : 4) * LOWS <= 4 * POOL, "a block's memory is too small");
  IN_SHARED float* part = pool + FLOATS + (LOW ? AT_U / 2 : AT_U);
  Swizzled<Low, DY> dy = {low + AT_DY};
  Swizzled<Low, H> features = {low}, dout = {low + L * M * H}, normed = {low + (NORM ? AT_NORMED : L * M * H)}, decodes = {low + AT_DECODER};
  Swizzled<Low, W> seen = {low + (ALL ? AT_SEEN : AT_U)}, encodes = {low + AT_ENCODER};
  if (!LIVE) spread_of(last, n, (uint)shape[3], (uint)shape[4], part, me, (uint)THREADS, mean, deviation);
  auto decoding = Either<(KEPT > 0)>::of(decodes, Padded<H>{decoder, A + 1, H});
  auto encoding = Either<(KEPT > 2)>::of(encodes, Padded<D>{encoder, H, D});
  if (KEPT > 0) keep_weight<OUT, H, THREADS>(decoder, A + 1, H, decodes, me);
#pragma unroll
  for (int k = 0; k < L * MATRICES && KEPT > 1; ++k) {
    IN_DEVICE const float* matrix = WEIGHTS_OF(k / MATRICES) + k % MATRICES * ROWS * H * H;
    keep_weight<ROWS * H, H, THREADS>(matrix, ROWS * H, H, Swizzled<Low, H>{low + AT_LAYERS + k * ROWS * H * H}, me);
  }
  if (KEPT > 2) keep_weight<H, W, THREADS>(encoder, H, D, encodes, me);
  for (uint k = me; k < M * DY; k += THREADS) dy.put(k / DY, k % DY, 0.0f);

  float of_encoder[INPUT_R][INPUT_C][4], of_decoder[1][OUTPUT_C][4], of_layers[L * MATRICES][GATE_R][GATE_C][4];
  clear(of_encoder);
  clear(of_decoder);
#pragma unroll
  for (int k = 0; k < L * MATRICES; ++k) clear(of_layers[k]);
  IN_SHARED float *scales = carries + AT_SCALES, *shrinks = scales + M;
  IN_DEVICE const float* norm = layer0 + L * LAYER_AND_BIASES;
  float of_norm = 0.0f, of_biases[L];
#pragma unroll
  for (int l = 0; l < L; ++l) of_biases[l] = 0.0f;

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
        DEVICE_BARRIER
#include "read.metal.h"
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
        multiply_rows<EXACT, SEEN, M, H, HIDDEN_C, THREADS>(seen, transposed(encoding), features, false, me);
        BARRIER
#pragma unroll
        for (int l = 0; l < L; ++l) {
#include "layer.metal.h"
#include "forward"
        }
        if (NORM) {
#include "norm_forward.metal.h"
        }
        multiply_rows<EXACT, H, M, OUT, 1, THREADS>(normed, transposed(decoding), of_y, false, me);
        BARRIER
      }
#include "live.metal.h"
      if (!back) continue;

#include "loss.metal.h"
      BARRIER
      add_gradient<EXACT, M, OUT, H, 1, OUTPUT_C>(transposed(dy), normed, me, of_decoder);
      BARRIER
      multiply_rows<EXACT, OUT, M, H, HIDDEN_C, THREADS>(dy, decoding, normed, false, me);
      BARRIER
      if (NORM) {
#include "norm_back.metal.h"
      }
#pragma unroll
      for (int l = L - 1; l >= 0; --l) {
#include "layer.metal.h"
#include "back"
        BARRIER
        add_gradient<EXACT, M, ROWS * H, H, GATE_R, GATE_C>(transposed(u), x, me, of_layers[l * MATRICES]);
        if (MATRICES > 1)
          add_gradient<EXACT, M, ROWS * H, H, GATE_R, GATE_C, (ROWS - 1) * H, (GATES - ROWS) * H>(transposed(u), states, me,
                                                                                                of_layers[l * MATRICES + MATRICES - 1]);
        for (uint row = 0; BIASES > 0 && me < (uint)(GATES * H) && row < (uint)M; ++row) of_biases[l] += u.at(row, me);
        multiply_rows<EXACT, ROWS * H, M, H, HIDDEN_C, THREADS>(u, weight, dout, HIGHWAY != 0, me);
        BARRIER
      }
      if (NORM) {
        for (uint k = me; k < M * H; k += THREADS) dout.put(k / H, k % H, dout.at(k / H, k % H) + normed.at(k / H, k % H));
        BARRIER
      }
      if (!ALL) {
        see<SEGMENTS, STEPS, D, SEEN, THREADS>(observations, seen, chunk, first_agent + segment, N, me);
        BARRIER
      }
      add_gradient<EXACT, M, H, SEEN, INPUT_R, INPUT_C>(transposed(dout), seen, me, of_encoder);
    }
  }

  IN_DEVICE float* mine = grads + block * (uint)(H * D + (A + 1) * H + L * LAYER_AND_BIASES + (NORM ? H : 0) + NUMBERS);
  store_gradient<H, SEEN>(mine, (uint)H, (uint)D, me, of_encoder);
  mine += H * D;
  store_gradient<OUT, H>(mine, (uint)(A + 1), (uint)H, me, of_decoder);
  mine += (A + 1) * H;
#pragma unroll
  for (int l = 0; l < L; ++l) {
#pragma unroll
    for (int k = 0; k < MATRICES; ++k) {
      store_gradient<ROWS * H, H>(mine, (uint)(ROWS * H), (uint)H, me, of_layers[l * MATRICES + k]);
      mine += ROWS * H * H;
    }
#pragma unroll
    for (int k = 0; k < BIASES; ++k) {
      bool has = k == 0 || GATES == ROWS ? me < (uint)(ROWS * H) : me < (uint)(GATES * H) && me / H != (uint)(ROWS - 1);
      if (has) mine[k > 0 && me >= (uint)(ROWS * H) ? me - H : me] = of_biases[l];
      mine += ROWS * H;
    }
  }
  if (NORM && me < (uint)H) mine[me] = of_norm;
  if (NORM) mine += H;
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
