// Time loop of a recurrent layer's kernel, which multiplies the state by a matrix at every step.
//
// A block computes R segments, and each of its THREADS threads C channels of them (C THREADS >= H). Threads exchange states through
// shared memory at barriers. Adjacent threads read adjacent numbers. A surplus thread repeats the last channel and stores nothing.
//
// A product has D inputs, read in N = ceil(D / U) chunks of U, and G weights per input and channel. The weights of the next chunk
// are loaded while the current ones are used. Blocks start at different chunks so that they don't all request the same cache line.
//
// A step loads all its numbers before it stores any: the compiler must assume that a store changes later loads, so otherwise each
// segment would wait for memory again.
//
// first_step: stride of the initial state per channel; not_done_step: stride of `not_done` per segment. Each is 1, or 0 for one shared
// number. NotDone, First: pointer types in any address space.

#pragma once

#include "gpu/functions.metal.h"

// Inputs of the gradient of step t. states: of step t - 1; kept: `not_done` of step t.
template <int R>
struct StepOfR {
  float saved[4][R], gradient[R], states[R], kept[R], next_not_done[R];
};

template <typename Low, int H, int R, int C, int THREADS, int G, int D, int U, int N>
struct Walk {
  IN_DEVICE const Low* weight;  // (D, G, H)
  uint S, first_step, not_done_step, me;
  uint first, at;  // first segment of the block; first input of the next chunk
  uint channel, next;  // this thread's current and next channel
  bool mine;  // false for a surplus thread
  float ahead[U][G];

  FUNCTION Walk(IN_DEVICE const Low* weight_hh, uint S_, uint first_step_, uint not_done_step_, uint me_, uint block)
      : weight(weight_hh), S(S_), first_step(first_step_), not_done_step(not_done_step_), me(me_) {
    first = block * R, at = block % N * U;
    load(me < H ? me : H - 1);
  }

  FUNCTION void load(uint of) {
#pragma unroll
    for (int v = 0; v < U * G; ++v) {
      uint input = at + v / G;
      input = D % U == 0 || input < D ? input : D - 1;  // inputs beyond D are 0, so their weights don't matter
      ahead[v / G][v % G] = (float)weight[(input * G + v % G) * H + of];
    }
  }

  FUNCTION void go_to(int c) {
    channel = me + c * THREADS, next = me + (c + 1) % C * THREADS;
    mine = channel < H;
    channel = mine ? channel : H - 1;
    next = next < H ? next : H - 1;
  }

  // Add the product of D inputs (rows) with the current channel's weights to `sums`.
  FUNCTION void product(IN_SHARED const Rows<R>* rows, IN_THREAD float (&sums)[G][R]) {
#pragma unroll 2
    for (int n = 0; n < N; ++n) {
      float w[U][G];
#pragma unroll
      for (int v = 0; v < U * G; ++v) w[v / G][v % G] = ahead[v / G][v % G];
      uint now = at;
      at = at + U < N * U ? at + U : 0;
      load(n + 1 < N ? channel : next);
#pragma unroll
      for (int u = 0; u < U; ++u) {
        Rows<R> row = rows[now + u];
#pragma unroll
        for (int v = 0; v < G * R; ++v) sums[v / R][v % R] += w[u][v / R] * row.of[v % R];
      }
    }
  }

  // Fill the first half of before (2, N U) with the initial state times `not_done`. Steps use the halves alternately: with one half for
  // this step and one for the next, a step needs only one barrier.
  template <class NotDone, class First>
  FUNCTION void begin(NotDone not_done, First h0, IN_SHARED Rows<R>* before) const {
    for (uint k = me; k < N * U; k += THREADS) {
      for (int r = 0; r < R; ++r) {
        uint s = first + r;
        before[k].of[r] = s < S && k < H ? not_done[s * not_done_step] * h0[(s * H + k) * first_step] : 0.0f;
        before[N * U + k].of[r] = 0.0f;
      }
    }
  }

  // Load `not_done` of step t, the factors of the states before the step.
  template <class NotDone>
  FUNCTION void not_done_of(int t, int T, NotDone not_done, IN_THREAD float (&kept)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) kept[r] = first + r < S && t < T ? not_done[(t * S + first + r) * not_done_step] : 0.0f;
  }

  // Initialize the backward pass with zeros.
  FUNCTION void begin_back(IN_SHARED Rows<R>* after, IN_THREAD float (&carry)[C][R]) const {
#pragma unroll
    for (int v = 0; v < C * R; ++v) carry[v / R][v % R] = 0.0f;
    for (uint k = me; k < N * U; k += THREADS) {
      for (int r = 0; r < R; ++r) after[k].of[r] = 0.0f;
    }
  }

  // Multiply the gradient of step t + 1 (`after`) by the weights, for all channels. ends: true at the last step, where sums are 0.
  FUNCTION void products(bool ends, IN_SHARED const Rows<R>* after, IN_THREAD float (&sums)[C][G][R]) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      go_to(c);
#pragma unroll
      for (int v = 0; v < G * R; ++v) sums[c][v / R][v % R] = 0.0f;
      if (!ends) product(after, sums[c]);
    }
    BARRIER  // all threads have read `after`
  }

  // Load the inputs of the gradient of step t. states: after each step; h0: initial state.
  template <class NotDone, class First>
  FUNCTION void read(int t, int T, IN_DEVICE const Low* gates, IN_DEVICE const float* dh, IN_DEVICE const float* states,
                     First h0, NotDone not_done, IN_THREAD StepOfR<R>& step) const {
    not_done_of(t, T, not_done, step.kept);
    not_done_of(t + 1, T, not_done, step.next_not_done);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      bool in = first + r < S;
      uint row = t * S + first + r, k = row * H + channel;
      step.gradient[r] = in ? dh[k] : 0.0f;
      step.states[r] = !in ? 0.0f : t > 0 ? states[k - S * H] : h0[k * first_step];
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) step.saved[gate][r] = in ? (float)gates[(row * 4 + gate) * H + channel] : 0.0f;
    }
  }
};
