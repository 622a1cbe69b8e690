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

template <int R, int C>
FUNCTION void clear(IN_THREAD float (&sums)[R][C][4]) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[i][j][v] = 0.0f;
}

// Rows (M, N) of a product, (16, 8 C) of it to 32 threads at a time; `add`: to what is there.
template <int EXACT, int INNERS, int M, int N, int C, int THREADS, class Left, class Right, class Result>
FUNCTION void multiply_rows(Left left, Right right, Result to, bool add, uint me) {
  constexpr uint ACROSS = N / 8 / C, ITEMS = M / 16 * ACROSS;
  for (uint item = me / 32; item < ITEMS; item += THREADS / 32) {
    uint row = item / ACROSS * 16, column = item % ACROSS * 8 * C;
    float sums[1][C][4];
    clear(sums);
    add_product<EXACT, INNERS, 1, C, 8>(left, row, right, column, me, sums);
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        uint at = to.place(row + row_of(v, me), column + 8 * (uint)j + column_of(v, me));
        to.numbers[at] = add ? to.numbers[at] + sums[0][j][v] : sums[0][j][v];
      }
  }
}

// Of a layer's input x the gates, in u: g, z, q, each H wide, by its transposed weight. 32 threads have all three of (16 R, 8)
// channels.
template <int EXACT, int H, int M, int R, int THREADS, class Input, class Weight, class Gates>
FUNCTION void make_gates(Input x, Weight weight, Gates u, uint me) {
  constexpr uint ACROSS = H / 8, ITEMS = M / 16 / R * ACROSS;
  for (uint item = me / 32; item < ITEMS; item += THREADS / 32) {
    uint row = item / ACROSS * 16 * R, column = item % ACROSS * 8;
    float sums[R][3][4];
    clear(sums);
    add_product<EXACT, H, R, 3, H>(x, row, weight, column, me, sums);
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        uint r = row + 16 * (uint)i + row_of(v, me), at = u.place(r, column + column_of(v, me));
        MinGRUGates<float> gates = mingru_gates(sums[i][0][v], sums[i][1][v], sums[i][2][v]);
        u.numbers[at] = gates.g, u.numbers[at + H] = gates.z, u.numbers[at + 2 * H] = gates.q;
      }
  }
}

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

// States of one channel of one segment through a chunk, from what was before it: u is its first row's, as is s.
template <int STEPS, int SEGMENTS, int H, int U>
FUNCTION float walk(IN_SHARED const float* u, IN_SHARED float* s, IN_SHARED const float* keep, uint segment, uint channel,
                    float state) {
  constexpr int AHEAD = STEPS < 8 ? STEPS : 8;
  for (int t = 0; t < STEPS; t += AHEAD) {
    float g[AHEAD], z[AHEAD], kept[AHEAD];
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      uint row = (uint)((t + v) * SEGMENTS) + segment, at = row * (uint)U + swizzled(row, channel);
      g[v] = u[at], z[v] = u[at + H], kept[v] = keep[row];
    }
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      uint row = (uint)((t + v) * SEGMENTS) + segment;
      state = mingru_state(z[v], g[v], kept[v] * state);
      s[row * (uint)H + swizzled(row, channel)] = state;
    }
  }
  return state;
}

// The same backward: the gates in u become gradients by what they are of, dout the highway's part of x's. Returns dL/dstate
// before the chunk.
template <int STEPS, int SEGMENTS, int H, int U>
FUNCTION float walk_back(IN_SHARED float* u, IN_SHARED const float* x, IN_SHARED float* dout, IN_SHARED const float* s,
                         IN_SHARED const float* keep, uint segment, uint channel, float first, float carry) {
  constexpr int AHEAD = STEPS < 4 ? STEPS : 4;
  uint end = (uint)((STEPS - 1) * SEGMENTS) + segment;
  float after = s[end * (uint)H + swizzled(end, channel)];
  for (int t = STEPS - 1; t >= 0; t -= AHEAD) {
    float g[AHEAD], z[AHEAD], q[AHEAD], input[AHEAD], kept[AHEAD], gradient[AHEAD], before[AHEAD];
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      uint row = (uint)((t - v) * SEGMENTS) + segment, place = swizzled(row, channel), at = row * (uint)U + place;
      g[v] = u[at], z[v] = u[at + H], q[v] = u[at + 2 * H];
      input[v] = x[row * (uint)H + place], gradient[v] = dout[row * (uint)H + place], kept[v] = keep[row];
      uint last = row - (uint)SEGMENTS;
      before[v] = t > v ? s[last * (uint)H + swizzled(last, channel)] : first;
    }
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      uint row = (uint)((t - v) * SEGMENTS) + segment, place = swizzled(row, channel), at = row * (uint)U + place;
      float slope = g[v] >= 0.5f ? 1.0f : g[v] * (1.0f - g[v]);
      MinGRUGradient<float> by;
      mingru_gradient_of(z[v], q[v], g[v], slope, input[v], kept[v], before[v], after, gradient[v], carry, by);
      u[at] = by.hidden, u[at + H] = by.gate, u[at + 2 * H] = by.projection;
      dout[row * (uint)H + place] = by.x;
      after = before[v];
    }
  }
  return carry;
}

// A row's place among the samples (T, S).
template <int SEGMENTS, int STEPS>
FUNCTION uint sample_of(int row, int chunk, uint segment, uint S) {
  return (uint)(chunk * STEPS + row / SEGMENTS) * S + segment + (uint)(row % SEGMENTS);
}

// A chunk's observations (M, D), in rows of U numbers; SEEN is D and zeros.
template <int SEGMENTS, int STEPS, int D, int SEEN, int U, int THREADS>
FUNCTION void see(IN_DEVICE const float* observations, IN_SHARED float* u, int chunk, uint segment, uint S, uint me) {
#pragma unroll 4
  for (int k = (int)me; k < SEGMENTS * STEPS * SEEN; k += THREADS) {
    int row = k / SEEN, d = k % SEEN;
    uint at = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S) * (uint)D + (uint)d;
    u[row * U + (int)swizzled((uint)row, (uint)d)] = d < D ? observations[at] : 0.0f;
  }
}

#define OF_LAYER(name, l) ((l) == 0 ? name##0 : (l) == 1 ? name##1 : (l) == 2 ? name##2 : name##3)

KERNEL minibatch<BLOCKS, T, D, H, L, A, HEADS, MASKED, LIVE, SEGMENTS, STEPS, THREADS, KEPT, EXACT, POOL, GATES_R, HIDDEN_C,
                 GATE_R, GATE_C, INPUT_R, INPUT_C, OUTPUT_C>:
  float observations actions, uint8_t masks, float keep old_logprob old_value given further last first0 first1 first2 first3
  encoder decoder layer0 layer1 layer2 layer3 ent_coef settings, int sizes shape
  -> float grads partial ratio value adv begins {
  constexpr int M = SEGMENTS * STEPS, CHUNKS = T / STEPS, SEEN = (D + 7) / 8 * 8, TIMES = T * SEGMENTS, UNITS = SEGMENTS * H;
  constexpr int OUT = (A + 16) / 16 * 16, OUT8 = (A + 8) / 8 * 8, Y = OUT + 4, U = 3 * H > SEEN ? 3 * H : (SEEN + 31) / 32 * 32;
  constexpr int AT_U = (L + 1) * M * H, AT_S = AT_U + M * U, AT_Y = AT_S + M * H, AT_KEEP = AT_Y + M * Y;
  constexpr int AT_TIMES = AT_KEEP + M, AT_CARRY = AT_TIMES + (LIVE ? 6 * TIMES : 0);
  constexpr int AT_WEIGHTS = AT_CARRY + (CHUNKS > 1 ? L * UNITS : 0);
  static_assert(M <= THREADS && THREADS <= M * U && T % STEPS == 0, "no such division");
  static_assert(AT_WEIGHTS + (KEPT ? L * 3 * H * H : 0) <= POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED float *x = pool, *u = pool + AT_U, *states = pool + AT_S, *y = pool + AT_Y, *kept = pool + AT_KEEP;
  IN_SHARED float *values = pool + AT_TIMES, *advantages = values + TIMES, *rewards = advantages + TIMES;
  IN_SHARED float *terminals = rewards + TIMES, *finals = terminals + TIMES, *ratios = finals + TIMES;
  IN_SHARED float *carries = pool + AT_CARRY, *part = u, *weights = pool + AT_WEIGHTS, *dout = x + L * M * H;
  const uint S = (uint)shape[0], keep_step = (uint)shape[1], first_step = (uint)shape[2], n = (uint)T * S;
  float mean = 0.0f, deviation = 1.0f;
  if (!LIVE) spread_of(last, n, (uint)shape[3], (uint)shape[4], part, me, (uint)THREADS, mean, deviation);
  if (KEPT) {
#pragma unroll
    for (int l = 0; l < L; ++l) {
      IN_DEVICE const float* weight = OF_LAYER(layer, l);
      for (uint k = me; k < 3 * H * H; k += THREADS)
        weights[3 * l * H * H + (int)(k / H * H + swizzled(k / H, k % H))] = weight[k];
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
        see<SEGMENTS, STEPS, D, SEEN, U, THREADS>(observations, u, chunk, segment, S, me);
        for (int row = (int)me; row < M; row += THREADS)
          kept[row] = keep[sample_of<SEGMENTS, STEPS>(row, chunk, segment, S) * keep_step];
        BARRIER
        Padded<IN_DEVICE const float*, D> encodes = {encoder, (uint)H, (uint)D};
        multiply_rows<EXACT, SEEN, M, H, HIDDEN_C, THREADS>(Swizzled<U>{u}, Transposed<Padded<IN_DEVICE const float*, D>>{encodes},
                                                            Swizzled<H>{x}, false, me);
        BARRIER
      }
#pragma unroll
      for (int l = 0; l < L; ++l) {
        if (turn == CHUNKS) break;
        IN_SHARED float *input = x + l * M * H, *output = input + M * H;
        if (KEPT)
          make_gates<EXACT, H, M, GATES_R, THREADS>(Swizzled<H>{input}, Transposed<Swizzled<H>>{{weights + 3 * l * H * H}}, Swizzled<U>{u}, me);
        else
          make_gates<EXACT, H, M, GATES_R, THREADS>(Swizzled<H>{input},
              Transposed<Padded<IN_DEVICE const float*, H>>{{OF_LAYER(layer, l), 3 * H, H}}, Swizzled<U>{u}, me);
        BARRIER
        for (uint k = me; k < UNITS; k += THREADS) {
          uint unit = segment * (uint)H + k, begin = (uint)(chunk * L + l) * S * (uint)H + unit;
          float state = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
          state = walk<STEPS, SEGMENTS, H, U>(u, states, kept, k / H, k % H, state);
          if (!back && chunk + 1 < CHUNKS) begins[begin + (uint)(L * H) * S] = state;
        }
        BARRIER
        for (uint k = me; k < M * H; k += THREADS) {
          uint row = k / H, place = row * (uint)U + swizzled(row, k % H) + 2 * H, at = row * (uint)H + swizzled(row, k % H);
          output[at] = mingru_out(u[place], input[at], states[at]);
        }
        BARRIER
      }
      if (turn != CHUNKS) {
        Padded<IN_DEVICE const float*, H> decodes = {decoder, (uint)(A + 1), (uint)H};
        multiply_rows<EXACT, H, M, OUT, 1, THREADS>(Swizzled<H>{dout}, Transposed<Padded<IN_DEVICE const float*, H>>{decodes},
                                                    Apart<Y>{y}, false, me);
        BARRIER
      }
      if (LIVE && !back && (int)me < M) {
        uint row = me, at = (uint)(chunk * M) + row;
        values[at] = y[row * Y + A];
        if (shape[7] != 0) {
          uint sample = sample_of<SEGMENTS, STEPS>((int)row, chunk, segment, S);
          float log_sums[HEADS + 1], entropies[HEADS + 1];
          IN_SHARED const float* logits = y + row * Y;
          float logprob = of_choices<MASKED, HEADS>(logits, masks + (MASKED ? sample * (uint)A : 0), actions, sizes, 1, sample,
                                                    log_sums, entropies);
          ratios[at] = exp(logprob - old_logprob[sample]);
        }
      }
      if (LIVE && turn == CHUNKS - 1) {
        BARRIER
        Discounts by = {settings[5], settings[6], settings[7], settings[8], settings[9], shape[5] != 0, shape[6] != 0};
        for (int k = (int)me; k < TIMES - SEGMENTS; k += THREADS) {
          int next = k + SEGMENTS;
          AdvantageStep step = advantage_step(by, values[k], values[next], ratios[k], rewards[next], terminals[next], finals[k],
                                              finals[next]);
          advantages[k] = step.delta, ratios[k] = step.decay;
        }
        BARRIER
        if ((int)me < SEGMENTS) {
          float a = 0.0f;
          advantages[TIMES - SEGMENTS + (int)me] = a;
#pragma unroll 4
          for (int k = TIMES - 2 * SEGMENTS + (int)me; k >= 0; k -= SEGMENTS) {
            a = discounted(advantages[k], ratios[k], a);
            advantages[k] = a;
          }
        }
        BARRIER
      }
      if (!back) continue;

      if ((int)me < M) {
        int row = (int)me;
        uint sample = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
        IN_SHARED float* mine = y + row * Y;
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
      add_gradient<EXACT, M, OUT, H, 1, OUTPUT_C>(Transposed<Apart<Y>>{{y}}, Swizzled<H>{dout}, me, of_decoder);
      BARRIER
      multiply_rows<EXACT, OUT8, M, H, HIDDEN_C, THREADS>(Apart<Y>{y}, Padded<IN_DEVICE const float*, H>{decoder, A + 1, H},
                                                          Swizzled<H>{dout}, false, me);
      BARRIER
#pragma unroll
      for (int l = L - 1; l >= 0; --l) {
        IN_SHARED float *input = x + l * M * H, *weight = weights + 3 * l * H * H;
        IN_DEVICE const float* in_device = OF_LAYER(layer, l);
        if (l < L - 1) {
          if (KEPT)
            make_gates<EXACT, H, M, GATES_R, THREADS>(Swizzled<H>{input}, Transposed<Swizzled<H>>{{weight}}, Swizzled<U>{u}, me);
          else
            make_gates<EXACT, H, M, GATES_R, THREADS>(Swizzled<H>{input}, Transposed<Padded<IN_DEVICE const float*, H>>{{in_device, 3 * H, H}},
                                                      Swizzled<U>{u}, me);
          BARRIER
        }
        for (uint k = me; k < UNITS; k += THREADS) {
          uint unit = segment * (uint)H + k, begin = (uint)(chunk * L + l) * S * (uint)H + unit;
          float first = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
          float carry = chunk + 1 < CHUNKS ? carries[(uint)(l * UNITS) + k] : 0.0f;
          if (l < L - 1) walk<STEPS, SEGMENTS, H, U>(u, states, kept, k / H, k % H, first);
          carry = walk_back<STEPS, SEGMENTS, H, U>(u, input, dout, states, kept, k / H, k % H, first, carry);
          if (CHUNKS > 1) carries[(uint)(l * UNITS) + k] = carry;
        }
        BARRIER
        add_gradient<EXACT, M, 3 * H, H, GATE_R, GATE_C>(Transposed<Swizzled<U>>{{u}}, Swizzled<H>{input}, me, of_layers[l]);
        if (KEPT)
          multiply_rows<EXACT, 3 * H, M, H, HIDDEN_C, THREADS>(Swizzled<U>{u}, Swizzled<H>{weight}, Swizzled<H>{dout}, true, me);
        else
          multiply_rows<EXACT, 3 * H, M, H, HIDDEN_C, THREADS>(Swizzled<U>{u}, Padded<IN_DEVICE const float*, H>{in_device, 3 * H, H},
                                                               Swizzled<H>{dout}, true, me);
        BARRIER
      }
      see<SEGMENTS, STEPS, D, SEEN, U, THREADS>(observations, u, chunk, segment, S, me);
      BARRIER
      add_gradient<EXACT, M, H, SEEN, INPUT_R, INPUT_C>(Transposed<Swizzled<H>>{{dout}}, Swizzled<U>{u}, me, of_encoder);
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
