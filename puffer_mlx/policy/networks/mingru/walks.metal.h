// A MinGRU layer in the minibatch kernels (ppo/minibatch), forward and backward.
//
// A chunk is a number of consecutive steps of a block's segments. Its rows are (steps, segments). The steps of a chunk can be
// divided among threads; a thread's steps are a stretch.

#pragma once

#include "rows.metal.h"

// Number of steps that a thread reads before it computes the first of them. It divides `steps`.
#define AHEAD_OF(steps) ((steps) % 4 == 0 ? 4 : (steps) % 3 == 0 ? 3 : (steps) % 2 == 0 ? 2 : 1)

// Compute the MinGRU states of COUNT steps of C channels, starting at row `begin` and `channel`. state: before the first step,
// replaced by the last state.
template <int COUNT, int AHEAD, int SEGMENTS, int C, class Gates, class States>
FUNCTION void walk_on(Gates u, States s, IN_SHARED const float* not_done, uint begin, uint channel, uint H, IN_THREAD float (&state)[C]) {
  for (uint t = 0; t < COUNT; t += AHEAD) {
    float g[AHEAD][C], z[AHEAD][C], kept[AHEAD];
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint row = begin + (t + v) * SEGMENTS;
      get_some(u, row, channel, g[v]), get_some(u, row, channel + H, z[v]), kept[v] = not_done[row];
    }
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
#pragma unroll
      for (int c = 0; c < C; ++c) state[c] = mingru_state(z[v][c], g[v][c] + 0.5f, kept[v] * state[c]);
      put_some(s, begin + (t + v) * SEGMENTS, channel, state);
    }
  }
}

// Compute a MinGRU layer's outputs of one row for two channels, starting at `channel`.
template <class Gates, class Features>
FUNCTION void walk_out(Gates u, Features x, Features s, Features out, uint row, uint channel, uint H) {
  float projection[2], input[2], state[2];
  get_some(u, row, channel + 2 * H, projection), get_some(x, row, channel, input), get_some(s, row, channel, state);
#pragma unroll
  for (int v = 0; v < 2; ++v) state[v] = mingru_out(projection[v], input[v], state[v]);
  put_some(out, row, channel, state);
}

// Compute the MinGRU gradients of COUNT steps of C channels, backward from row `begin`: see walk_back.
template <int COUNT, int AHEAD, int SEGMENTS, int C, class Gates, class Features>
FUNCTION void walk_back_on(Gates u, Features x, Features dout, Features s, IN_SHARED const float* not_done, uint begin, uint channel,
                           uint H, IN_THREAD const float (&first)[C], IN_THREAD float (&carry)[C]) {
  float after[C];
  get_some(s, begin, channel, after);
  for (uint t = 0; t < COUNT; t += AHEAD) {
    float g[AHEAD][C], z[AHEAD][C], q[AHEAD][C], input[AHEAD][C], kept[AHEAD], gradient[AHEAD][C], before[AHEAD][C];
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint row = begin - (t + v) * SEGMENTS;
      get_some(u, row, channel, g[v]), get_some(u, row, channel + H, z[v]), get_some(u, row, channel + 2 * H, q[v]);
      get_some(x, row, channel, input[v]), get_some(dout, row, channel, gradient[v]), kept[v] = not_done[row];
      if (row >= SEGMENTS)
        get_some(s, row - SEGMENTS, channel, before[v]);
      else
#pragma unroll
        for (int c = 0; c < C; ++c) before[v][c] = first[c];
    }
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint row = begin - (t + v) * SEGMENTS;
      float hidden[C], gate[C], projection[C], by_x[C];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        float whole = g[v][c] + 0.5f, slope = g[v][c] >= 0.0f ? 1.0f : (0.5f + g[v][c]) * (0.5f - g[v][c]);
        MinGRUGradient<float> by;
        mingru_gradient_of(z[v][c], q[v][c], whole, slope, input[v][c], kept[v], before[v][c], after[c], gradient[v][c], carry[c], by);
        hidden[c] = by.hidden, gate[c] = by.gate, projection[c] = by.projection, by_x[c] = by.x;
        after[c] = before[v][c];
      }
      put_some(u, row, channel, hidden), put_some(u, row, channel + H, gate), put_some(u, row, channel + 2 * H, projection);
      put_some(dout, row, channel, by_x);
    }
  }
}

// Compute a MinGRU layer's states in a chunk of steps. A thread computes one channel of one segment over a stretch, 1/PARTS of the
// steps. A stretch maps the state before it to sums + factors * state. All threads compute these maps first; their composition is
// the state before each stretch. state: before the chunk. Returns the state after the thread's stretch.
template <int STEPS, int SEGMENTS, int H, int PARTS, class Gates, class States>
FUNCTION float walk(Gates u, States s, IN_SHARED const float* not_done, IN_SHARED float* sums, IN_SHARED float* factors, uint me,
                    float state) {
  constexpr int STRETCH = STEPS / PARTS, AHEAD = STRETCH % 8 == 0 ? 8 : AHEAD_OF(STRETCH), UNITS = SEGMENTS * H;
  uint channel = me % H, segment = me % UNITS / H, part = PARTS > 1 ? me / UNITS : 0, begin = part * STRETCH;
  if (PARTS > 1) {
    float sum = 0.0f, factor = 1.0f;
#pragma unroll 4
    for (uint t = 0; t < STRETCH; ++t) {
      uint row = (begin + t) * SEGMENTS + segment;
      float z = u.at(row, channel + H), kept = not_done[row];
      sum = mingru_state(z, u.at(row, channel) + 0.5f, kept * sum);
      factor = mingru_state(z, 0.0f, kept * factor);
    }
    sums[me] = sum, factors[me] = factor;
    BARRIER
    for (uint k = me % UNITS; k < me; k += UNITS) state = sums[k] + factors[k] * state;
  }
  float states[1] = {state};
  walk_on<STRETCH, AHEAD, SEGMENTS>(u, s, not_done, begin * SEGMENTS + segment, channel, H, states);
  return states[0];
}

// Compute a MinGRU layer's gradients in a chunk of steps, with stretches as in `walk`. Replaces the gates in u by the gradients of
// their inputs, and dout by the gradient of x through the highway. first: state before the chunk; carry: dL/dstate after it.
// Returns dL/dstate before the thread's stretch.
template <int STEPS, int SEGMENTS, int H, int PARTS, class Gates, class Features>
FUNCTION float walk_back(Gates u, Features x, Features dout, Features s, IN_SHARED const float* not_done, IN_SHARED float* sums,
                         IN_SHARED float* factors, uint me, float first, float carry) {
  constexpr int STRETCH = STEPS / PARTS, AHEAD = AHEAD_OF(STRETCH), UNITS = SEGMENTS * H;
  uint channel = me % H, segment = me % UNITS / H, part = PARTS > 1 ? me / UNITS : 0, end = (part + 1) * STRETCH;
  if (PARTS > 1) {
    float sum = 0.0f, factor = 1.0f;
#pragma unroll 4
    for (uint t = 0; t < STRETCH; ++t) {
      uint row = (end - 1 - t) * SEGMENTS + segment;
      float z = u.at(row, channel + H), q = u.at(row, channel + 2 * H), kept = not_done[row];
      float ds = sum + dout.at(row, channel) * q;
      sum = mingru_carry(z, kept, ds);
      factor = mingru_carry(z, kept, factor);
    }
    sums[me] = sum, factors[me] = factor;
    BARRIER
    for (uint k = (PARTS - 1) * UNITS + me % UNITS; k > me; k -= UNITS) carry = sums[k] + factors[k] * carry;
  }
  float firsts[1] = {first}, carries[1] = {carry};
  walk_back_on<STRETCH, AHEAD, SEGMENTS>(u, x, dout, s, not_done, (end - 1) * SEGMENTS + segment, channel, H, firsts, carries);
  return carries[0];
}

// Return one channel of a recurrent state before the first step of a minibatch; 0 for padding. unit: segment * H + channel; first:
// (S, WIDTH), or one value for all if first_step is 0.
template <int H, int WIDTH>
FUNCTION float first_state(IN_DEVICE const float* first, uint first_step, uint unit) {
  uint channel = unit % (uint)H;
  return channel < (uint)WIDTH ? first[(unit / (uint)H * (uint)WIDTH + channel) * first_step] : 0.0f;
}

// Compute a MinGRU layer forward for one chunk: reads its input x, writes its output, gates u and states s. first: states before the
// minibatch. begins: states before each chunk; those of this chunk begin at element `begin`, those of the next chunk at
// `begin + apart`. store: true to write the states before the next chunk.
template <int EXACT, int H, int WIDTH, class Block, class Features, class Gates, class Weight>
FUNCTION void layer_forward(IN_THREAD const Block& rows, Features x, Features out, Gates u, Features s, Weight weight,
                            IN_DEVICE const float* first, uint first_step, IN_DEVICE float* begins, uint begin, uint apart,
                            int chunk, uint segment, bool store) {
  constexpr int M = Block::M, UNITS = Block::UNITS, PARTS = Block::PARTS, THREADS = Block::THREADS;
  make_gates<EXACT, H, M, THREADS>(x, transposed(weight), u, rows.me);
  BARRIER
  for (uint k = rows.me; k < UNITS * PARTS; k += THREADS) {
    uint unit = segment * (uint)H + k % UNITS;
    float state = chunk == 0 ? first_state<H, WIDTH>(first, first_step, unit) : begins[begin + unit];
    state = walk<Block::STEPS, Block::SEGMENTS, H, PARTS>(u, s, rows.not_done, rows.y, rows.y + THREADS, k, state);
    if (store && chunk + 1 < Block::CHUNKS && k >= UNITS * (PARTS - 1)) begins[begin + unit + apart] = state;
  }
  BARRIER
  for (uint k = rows.me; k < M * H; k += THREADS) {
    uint row = k / H, channel = k % H;
    out.put(row, channel, mingru_out(u.at(row, channel + 2 * H), x.at(row, channel), s.at(row, channel)));
  }
  BARRIER
}

// Compute a MinGRU layer backward for one chunk of steps. Replaces the gates in u by the gradients of their inputs, and dout by the
// gradient of x through the highway. again: true to recompute gates and states first. carries: dL/dstate after the chunk for each
// channel of each segment, replaced by dL/dstate before it. Other arguments: see layer_forward.
template <int EXACT, int H, int WIDTH, class Block, class Features, class Gates, class Weight>
FUNCTION void layer_backward(IN_THREAD const Block& rows, bool again, Features x, Features dout, Gates u, Features s, Weight weight,
                             IN_DEVICE const float* first, uint first_step, IN_DEVICE const float* begins, uint begin,
                             IN_SHARED float* carries, int chunk, uint segment) {
  constexpr int STEPS = Block::STEPS, SEGMENTS = Block::SEGMENTS, UNITS = Block::UNITS, PARTS = Block::PARTS, THREADS = Block::THREADS;
  if (again) {
    make_gates<EXACT, H, Block::M, THREADS>(x, transposed(weight), u, rows.me);
    BARRIER
  }
  for (uint k = rows.me; k < UNITS * PARTS; k += THREADS) {
    uint unit = segment * (uint)H + k % UNITS;
    float before = chunk == 0 ? first_state<H, WIDTH>(first, first_step, unit) : begins[begin + unit];
    float carry = chunk + 1 < Block::CHUNKS ? carries[k % UNITS] : 0.0f;
    if (again) walk<STEPS, SEGMENTS, H, PARTS>(u, s, rows.not_done, rows.y, rows.y + THREADS, k, before);
    if (PARTS > 1) BARRIER
    carry = walk_back<STEPS, SEGMENTS, H, PARTS>(u, x, dout, s, rows.not_done, rows.y, rows.y + THREADS, k, before, carry);
    if (Block::CHUNKS > 1 && k < UNITS) carries[k] = carry;
  }
}
