// A minibatch's gradients in one launch, of a linear encoder, MinGRU layers and a linear decoder, with PPO's loss of choices.
//
// A block takes SEGMENTS segments at a time through the network and back. Their activations stay in its shared memory, STEPS
// steps of them at a time; with fewer than T, the forward pass keeps the states between such chunks, and the backward pass
// computes a chunk's activations again. The gradients by the weights stay in its threads' registers until it has taken all
// of its segments; the kernel after this one adds up the blocks'. Products are those of matrix units.
//
// A row is a step of a segment: t SEGMENTS + s. observations (T, S, D), actions (T, S, HEADS), masks (T, S, A); weights as
// in the checkpoint, from the encoder (H, D) to layers (3H, H). One of two:
//   LIVE      advantages are of the values of this forward pass, of `given` (T, S), which are rewards, `further`, which are
//             terminals, and `last`, finals; their numbers are settings[5] and those behind it
//   else      `given` are advantages, `further` their weights, `last` moments, as in loss.metal.h
// sizes: of the heads. shape: S; a step of `keep`, and of `first`: 1, or 0 where one number is all of them; G and R of
// loss.metal.h; of live advantages whether their form is V, whether truncation bootstraps, whether there are ratios, finals.

#pragma once

#include "../../policy/networks/mingru/cell.h"
#include "../closed_form/sample.metal.h"
#include "advantages/step.metal.h"
#include "gpu/matrix.metal.h"

// Rows (M, N) of a product, C tiles of 8 columns to 32 threads at a time; `add`: to what is there.
template <int EXACT, int INNERS, int M, int N, int C, int THREADS, class Left, class Right>
FUNCTION void multiply_rows(Left left, Right right, IN_SHARED float* to, int to_row, bool add, uint me) {
  constexpr int ACROSS = N / 8 / C, ITEMS = M / 16 * ACROSS;
  for (int item = (int)me / 32; item < ITEMS; item += THREADS / 32) {
    uint row = (uint)(item / ACROSS * 16), column = (uint)(item % ACROSS * 8 * C);
    IN_SHARED float* mine = to + (row + matrix_row(me)) * (uint)to_row + column + matrix_column(me);
    float sums[1][C][4];
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[0][j][v] = add ? mine[v / 2 * 8 * to_row + 8 * j + v % 2] : 0.0f;
    add_product<EXACT, INNERS, 1, C>(left, row, right, column, me, sums);
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) mine[v / 2 * 8 * to_row + 8 * j + v % 2] = sums[0][j][v];
  }
}

// A weight's gradient (ROWS, COLUMNS) over M rows: each 32 threads have (16 R, 8 C) of it, or nothing.
template <int EXACT, int M, int ROWS, int COLUMNS, int R, int C, class Left, class Right>
FUNCTION void add_gradient(Left left, Right right, uint me, IN_THREAD float (&sums)[R][C][4]) {
  constexpr uint ACROSS = COLUMNS / 8 / C, ITEMS = ROWS / 16 / R * ACROSS;
  uint item = me / 32;
  if (item < ITEMS) add_product<EXACT, M, R, C>(left, item / ACROSS * 16 * R, right, item % ACROSS * 8 * C, me, sums);
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

template <int R, int C>
FUNCTION void clear(IN_THREAD float (&sums)[R][C][4]) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[i][j][v] = 0.0f;
}

// One channel of one segment of a chunk, forward: states to s and, unless x after the layer is there already, that, too.
template <int STEPS, int SEGMENTS, int H>
FUNCTION float walk(IN_SHARED const float* u, int u_row, IN_SHARED const float* x, IN_SHARED float* after, IN_SHARED float* s,
                    int x_row, IN_SHARED const float* keep, float state) {
  constexpr int AHEAD = STEPS < 8 ? STEPS : 8;
  for (int t = 0; t < STEPS; t += AHEAD) {
    float hidden[AHEAD], gate[AHEAD], projection[AHEAD], input[AHEAD], kept[AHEAD];
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int row = (t + v) * SEGMENTS;
      hidden[v] = u[row * u_row], gate[v] = u[row * u_row + H], projection[v] = u[row * u_row + 2 * H];
      input[v] = x[row * x_row], kept[v] = keep[row];
    }
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int row = (t + v) * SEGMENTS;
      MinGRUCell<float> cell = mingru_cell(hidden[v], gate[v], projection[v], input[v], kept[v] * state);
      state = cell.state;
      s[row * x_row] = state;
      if (after != x) after[row * x_row] = cell.out;
    }
  }
  return state;
}

// The same backward: u becomes its gradient, dout the highway's part of x's; returns dL/dstate before the chunk.
template <int STEPS, int SEGMENTS, int H>
FUNCTION float walk_back(IN_SHARED float* u, int u_row, IN_SHARED const float* x, IN_SHARED float* dout,
                         IN_SHARED const float* s, int x_row, IN_SHARED const float* keep, float first, float carry) {
  constexpr int AHEAD = STEPS < 8 ? STEPS : 8;
  float after = s[(STEPS - 1) * SEGMENTS * x_row];
  for (int t = STEPS - 1; t >= 0; t -= AHEAD) {
    float hidden[AHEAD], gate[AHEAD], projection[AHEAD], input[AHEAD], kept[AHEAD], gradient[AHEAD], before[AHEAD];
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int row = (t - v) * SEGMENTS;
      hidden[v] = u[row * u_row], gate[v] = u[row * u_row + H], projection[v] = u[row * u_row + 2 * H];
      input[v] = x[row * x_row], kept[v] = keep[row], gradient[v] = dout[row * x_row];
      before[v] = t > v ? s[(row - SEGMENTS) * x_row] : first;
    }
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int row = (t - v) * SEGMENTS;
      MinGRUGradient<float> by;
      mingru_gradient(hidden[v], gate[v], projection[v], input[v], kept[v], before[v], after, gradient[v], carry, by);
      u[row * u_row] = by.hidden, u[row * u_row + H] = by.gate, u[row * u_row + 2 * H] = by.projection;
      dout[row * x_row] = by.x;
      after = before[v];
    }
  }
  return carry;
}

// A layer's gates u of its input x, by its weight (3H, H): KEPT in shared memory, or the device's.
template <int EXACT, int H, int M, int C, int THREADS, int KEPT, int XR, int UR>
FUNCTION void multiply_gates(IN_SHARED const float* x, IN_SHARED const float* weight, IN_DEVICE const float* in_device,
                             IN_SHARED float* u, uint me) {
  Factor<IN_SHARED const float*, XR, 1> left = {x};
  if (KEPT)
    multiply_rows<EXACT, H, M, 3 * H, C, THREADS>(left, Factor<IN_SHARED const float*, 1, XR>{weight}, u, UR, false, me);
  else
    multiply_rows<EXACT, H, M, 3 * H, C, THREADS>(left, Factor<IN_DEVICE const float*, 1, H>{in_device}, u, UR, false, me);
  BARRIER
}

// A row's place among the samples (T, S).
template <int SEGMENTS, int STEPS>
FUNCTION uint sample_of(int row, int chunk, uint segment, uint S) {
  return (uint)(chunk * STEPS + row / SEGMENTS) * S + segment + (uint)(row % SEGMENTS);
}

#define OF_LAYER(name, l) ((l) == 0 ? name##0 : (l) == 1 ? name##1 : (l) == 2 ? name##2 : name##3)

KERNEL minibatch<BLOCKS, T, D, H, L, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS, KEPT, EXACT, POOL, GATES_C, HIDDEN_C, GATE_R, GATE_C,
                 INPUT_R, INPUT_C, OUTPUT_C>:
  float observations actions, uint8_t masks, float keep old_logprob old_value given further last first0 first1 first2 first3
  encoder decoder layer0 layer1 layer2 layer3 ent_coef settings, int sizes shape
  -> float grads partial ratio value adv begins {
  constexpr int M = SEGMENTS * STEPS, CHUNKS = T / STEPS, SEEN = (D + 7) / 8 * 8, WIDE = 3 * H > SEEN ? 3 * H : SEEN;
  constexpr int OUT = (A + 16) / 16 * 16, OUT8 = (A + 8) / 8 * 8;
  constexpr int XR = H + 4, UR = WIDE + 4, YR = OUT + 4;
  constexpr int AT_U = (L + 1) * M * XR, AT_S = AT_U + M * UR, AT_Y = AT_S + M * XR, AT_KEEP = AT_Y + M * YR;
  constexpr int AT_TIMES = AT_KEEP + M, AT_CARRY = AT_TIMES + (LIVE ? 6 * T * SEGMENTS : 0);
  constexpr int AT_PART = AT_CARRY + (CHUNKS > 1 ? L * SEGMENTS * H : 0), AT_WEIGHTS = AT_PART + THREADS;
  static_assert(M <= THREADS && T % STEPS == 0, "a thread is a row's, and chunks are of one length");
  static_assert(AT_WEIGHTS + (KEPT ? L * 3 * H * XR : 0) <= POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED float *x = pool, *u = pool + AT_U, *states = pool + AT_S, *y = pool + AT_Y, *kept = pool + AT_KEEP;
  IN_SHARED float *values = pool + AT_TIMES, *advantages = values + T * SEGMENTS, *rewards = advantages + T * SEGMENTS;
  IN_SHARED float *terminals = rewards + T * SEGMENTS, *finals = terminals + T * SEGMENTS, *ratios = finals + T * SEGMENTS;
  IN_SHARED float *carries = pool + AT_CARRY, *part = pool + AT_PART, *weights = pool + AT_WEIGHTS, *dout = x + L * M * XR;
  const uint S = (uint)shape[0], keep_step = (uint)shape[1], first_step = (uint)shape[2], n = (uint)T * S;
  float mean = 0.0f, deviation = 1.0f;
  if (!LIVE) spread_of(last, n, (uint)shape[3], (uint)shape[4], part, me, (uint)THREADS, mean, deviation);
  if (KEPT) {
#pragma unroll
    for (int l = 0; l < L; ++l) {
      IN_DEVICE const float* weight = OF_LAYER(layer, l);
      for (int k = (int)me; k < 3 * H * H; k += THREADS) weights[(3 * l * H + k / H) * XR + k % H] = weight[k];
    }
  }

  float of_encoder[INPUT_R][INPUT_C][4], of_decoder[1][OUTPUT_C][4], of_layers[L][GATE_R][GATE_C][4];
  clear(of_encoder);
  clear(of_decoder);
#pragma unroll
  for (int l = 0; l < L; ++l) clear(of_layers[l]);
  SampleSums sums;
#pragma unroll
  for (int row = 0; row < 6; ++row) sums.of[row] = 0.0f;
  PPONumbers numbers = {settings[0], settings[1], settings[2], settings[4]};

  for (uint segment = block * SEGMENTS; segment < S; segment += (uint)(BLOCKS * SEGMENTS)) {
    if (LIVE) {
      for (int k = (int)me; k < T * SEGMENTS; k += THREADS) {
        uint at = (uint)(k / SEGMENTS) * S + segment + (uint)(k % SEGMENTS);
        rewards[k] = given[at], terminals[k] = further[at], finals[k] = shape[8] != 0 ? last[at] : 0.0f;
        ratios[k] = 1.0f;
      }
    }
    // Forward in time, then, of more than one chunk, backward: `turn` counts both.
    for (int turn = 0; turn < 2 * CHUNKS; ++turn) {
      bool back = turn >= CHUNKS;
      int chunk = back ? 2 * CHUNKS - 1 - turn : turn;
      if (turn != CHUNKS) {
        BARRIER
        for (int k = (int)me; k < M * SEEN; k += THREADS) {
          int row = k / SEEN, d = k % SEEN;
          uint at = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
          u[row * UR + d] = d < D ? observations[at * (uint)D + (uint)d] : 0.0f;
        }
        for (int row = (int)me; row < M; row += THREADS)
          kept[row] = keep[sample_of<SEGMENTS, STEPS>(row, chunk, segment, S) * keep_step];
        BARRIER
        multiply_rows<EXACT, SEEN, M, H, HIDDEN_C, THREADS>(Factor<IN_SHARED const float*, UR, 1>{u},
            PaddedFactor<IN_DEVICE const float*, 1, D>{encoder, (uint)D, (uint)H}, x, XR, false, me);
        BARRIER
#pragma unroll
        for (int l = 0; l < L; ++l) {
          multiply_gates<EXACT, H, M, GATES_C, THREADS, KEPT, XR, UR>(x + l * M * XR, weights + 3 * l * H * XR, OF_LAYER(layer, l), u, me);
          for (int k = (int)me; k < SEGMENTS * H; k += THREADS) {
            int s = k / H, at = s * XR + k % H;
            uint unit = (segment + (uint)s) * (uint)H + (uint)(k % H), begin = (uint)(chunk * L + l) * S * (uint)H + unit;
            float state = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
            state = walk<STEPS, SEGMENTS, H>(u + s * UR + k % H, UR, x + l * M * XR + at, x + (l + 1) * M * XR + at,
                                                   states + at, XR, kept + s, state);
            if (!back && chunk + 1 < CHUNKS) begins[begin + (uint)(L * H) * S] = state;
          }
          BARRIER
        }
        multiply_rows<EXACT, H, M, OUT, 1, THREADS>(Factor<IN_SHARED const float*, XR, 1>{dout},
            PaddedFactor<IN_DEVICE const float*, 1, H>{decoder, (uint)H, (uint)(A + 1)}, y, YR, false, me);
        BARRIER
        if (LIVE && !back && (int)me < M) {
          int row = (int)me, at = chunk * M + row;
          values[at] = y[row * YR + A];
          if (shape[7] != 0) {
            uint sample = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
            float log_sums[HEADS + 1], entropies[HEADS + 1];
            IN_SHARED const float* logits = y + row * YR;
            float logprob = of_choices<MASKED, HEADS>(logits, masks + (MASKED ? sample * (uint)A : 0), actions, sizes, 1, sample,
                                                      log_sums, entropies);
            ratios[at] = exp(logprob - old_logprob[sample]);
          }
        }
      }
      if (LIVE && turn == CHUNKS - 1) {
        BARRIER
        if ((int)me < SEGMENTS) {
          Discounts by = {settings[5], settings[6], settings[7], settings[8], settings[9], shape[5] != 0, shape[6] != 0};
          float a = 0.0f;
          advantages[(T - 1) * SEGMENTS + (int)me] = a;
          for (int k = (T - 2) * SEGMENTS + (int)me; k >= 0; k -= SEGMENTS) {
            int next = k + SEGMENTS;
            a = advantage_of(by, values[k], values[next], ratios[k], rewards[next], terminals[next], finals[k], finals[next], a);
            advantages[k] = a;
          }
        }
        BARRIER
      }
      if (!back) continue;

      if ((int)me < M) {
        int row = (int)me;
        uint sample = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
        IN_SHARED float* mine = y + row * YR;
        IN_SHARED const float* logits = mine;
        IN_DEVICE const uint8_t* legal = masks + (MASKED ? sample * (uint)A : 0);
        float log_sums[HEADS + 1], entropies[HEADS + 1];
        float logprob = of_choices<MASKED, HEADS>(logits, legal, actions, sizes, 1, sample, log_sums, entropies);
        float target = LIVE ? advantages[chunk * M + row] : given[sample], now = mine[A];
        float gain = LIVE ? -target : -further[sample] * ((target - mean) / (deviation + 1e-8f));
        Compared by = {old_logprob[sample], old_value[sample], gain, LIVE ? now : old_value[sample], target};
        PPOTerms terms;
        sample_gradients<float, MASKED, HEADS>(logits, mine, legal, actions, sizes, 1, (uint)A, sample, logprob, log_sums,
                                               entropies, by, numbers, settings[3], ent_coef[0], 1.0f / (float)n, terms, sums);
        ratio[sample] = terms.ratio;
        value[sample] = now;
        adv[sample] = target;
      }
      BARRIER
      add_gradient<EXACT, M, OUT, H, 1, OUTPUT_C>(Factor<IN_SHARED const float*, 1, YR>{y},
                                                  Factor<IN_SHARED const float*, XR, 1>{dout}, me, of_decoder);
      BARRIER
      multiply_rows<EXACT, OUT8, M, H, HIDDEN_C, THREADS>(Factor<IN_SHARED const float*, YR, 1>{y},
          PaddedFactor<IN_DEVICE const float*, H, 1>{decoder, (uint)(A + 1), (uint)H}, dout, XR, false, me);
      BARRIER
#pragma unroll
      for (int l = L - 1; l >= 0; --l) {
        if (l < L - 1)
          multiply_gates<EXACT, H, M, GATES_C, THREADS, KEPT, XR, UR>(x + l * M * XR, weights + 3 * l * H * XR, OF_LAYER(layer, l), u, me);
        for (int k = (int)me; k < SEGMENTS * H; k += THREADS) {
          int s = k / H, at = s * XR + k % H;
          uint unit = (segment + (uint)s) * (uint)H + (uint)(k % H), begin = (uint)(chunk * L + l) * S * (uint)H + unit;
          float first = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
          float carry = chunk + 1 < CHUNKS ? carries[l * SEGMENTS * H + k] : 0.0f;
          IN_SHARED float *gates = u + s * UR + k % H, *input = x + l * M * XR + at;
          if (l < L - 1) walk<STEPS, SEGMENTS, H>(gates, UR, input, input, states + at, XR, kept + s, first);
          carry = walk_back<STEPS, SEGMENTS, H>(gates, UR, input, dout + at, states + at, XR, kept + s, first, carry);
          if (CHUNKS > 1) carries[l * SEGMENTS * H + k] = carry;
        }
        BARRIER
        add_gradient<EXACT, M, 3 * H, H, GATE_R, GATE_C>(Factor<IN_SHARED const float*, 1, UR>{u},
                                                         Factor<IN_SHARED const float*, XR, 1>{x + l * M * XR}, me, of_layers[l]);
        if (KEPT)
          multiply_rows<EXACT, 3 * H, M, H, HIDDEN_C, THREADS>(Factor<IN_SHARED const float*, UR, 1>{u},
              Factor<IN_SHARED const float*, XR, 1>{weights + 3 * l * H * XR}, dout, XR, true, me);
        else
          multiply_rows<EXACT, 3 * H, M, H, HIDDEN_C, THREADS>(Factor<IN_SHARED const float*, UR, 1>{u},
              Factor<IN_DEVICE const float*, H, 1>{OF_LAYER(layer, l)}, dout, XR, true, me);
        BARRIER
      }
      for (int k = (int)me; k < M * SEEN; k += THREADS) {
        int row = k / SEEN, d = k % SEEN;
        uint at = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
        u[row * UR + d] = d < D ? observations[at * (uint)D + (uint)d] : 0.0f;
      }
      BARRIER
      add_gradient<EXACT, M, H, SEEN, INPUT_R, INPUT_C>(Factor<IN_SHARED const float*, 1, XR>{dout},
                                                        Factor<IN_SHARED const float*, UR, 1>{u}, me, of_encoder);
    }
  }

  IN_DEVICE float* mine = grads + block * (uint)(H * D + (A + 1) * H + L * 3 * H * H);
  store_gradient<H, SEEN>(mine, (uint)H, (uint)D, me, of_encoder);
  mine += H * D;
  store_gradient<OUT, H>(mine, (uint)(A + 1), (uint)H, me, of_decoder);
  mine += (A + 1) * H;
#pragma unroll
  for (int l = 0; l < L; ++l) store_gradient<3 * H, H>(mine + l * 3 * H * H, (uint)(3 * H), (uint)H, me, of_layers[l]);
#pragma unroll
  for (int row = 0; row < 6; ++row) {
    float sum = block_sum(sums.of[row], part, me, (uint)THREADS);
    if (me == 0) partial[(uint)row * (uint)BLOCKS + block] = sum;
  }
}

// The sum of the blocks' gradients, (P,), and the metrics of their loss (7). shape: P, n, and how many blocks there were.
KERNEL add_blocks: float grads partial ent_coef settings, int shape -> float sum metrics {
  SHARED float part[256];
  uint P = (uint)shape[0], count = (uint)shape[2];
  if (i < P) {
    float total = 0.0f;
#pragma unroll 8
    for (uint b = 0; b < count; ++b) total += grads[b * P + i];
    sum[i] = total;
  }
  if (block > 0) return;
  SampleSums means;
#pragma unroll
  for (uint row = 0; row < 6; ++row) {
    float total = 0.0f;
    for (uint b = me; b < count; b += 256u) total += partial[row * count + b];
    means.of[row] = block_sum(total, part, me, 256) / (float)shape[1];
  }
  if (me == 0) write_metrics(means, settings[3], ent_coef[0], metrics);
}
