// How a kernel of a recurrence that multiplies its state with a matrix walks through time.
//
// A block owns R segments; its THREADS threads own C channels each (C THREADS >= H). They meet at barriers, and what the next
// product needs of other channels goes through shared memory. Neighbouring threads read neighbouring numbers everywhere. A
// thread without a channel of its own repeats the last one and stores nothing.
//
// A product has D inputs, N = ceil(D / U) chunks of U; G weights of each input for each channel. Weights come from far
// away, so those of the next chunk are on their way while one is used. Blocks begin at different chunks, or all would
// want the same line of a cache at the same time.
//
// All of a step's numbers are read before any is stored: for all that the compiler knows, a store may change what is
// read after it, and every segment would wait for memory anew.
//
// sizes: T, S; how far a channel's first state is from the next one's, and a segment's `keep` from the next one's: 1, or
// 0 where one number is all of them. Keep, First: pointers, in whatever memory.

#pragma once

#include "gpu/functions.metal.h"

// What a step's gradient is computed from.
template <int R>
struct StepOfR {
  float saved[4][R], gradient[R], states[R], kept[R], after_keep[R];  // states: before the step
};

template <typename Low, int H, int R, int C, int THREADS, int G, int D, int U, int N>
struct Walk {
  IN_DEVICE const Low* weight;  // (D, G, H)
  uint S, first_step, keep_step, me;
  uint first, at;  // the block's first segment; the chunk that is ahead
  uint channel, next;  // this thread's at the moment, and the one after it
  bool mine;  // whether it is
  float ahead[U][G];

  FUNCTION Walk(IN_DEVICE const Low* weight_hh, uint S_, uint first_step_, uint keep_step_, uint me_, uint block)
      : weight(weight_hh), S(S_), first_step(first_step_), keep_step(keep_step_), me(me_) {
    first = block * R, at = block % N * U;
    load(me < H ? me : H - 1);
  }

  FUNCTION void load(uint of) {
#pragma unroll
    for (int v = 0; v < U * G; ++v) {
      uint input = at + v / G;
      input = D % U == 0 || input < D ? input : D - 1;  // beyond D, what it meets is 0
      ahead[v / G][v % G] = (float)weight[(input * G + v % G) * H + of];
    }
  }

  FUNCTION void go_to(int c) {
    channel = me + c * THREADS, next = me + (c + 1) % C * THREADS;
    mine = channel < H;
    channel = mine ? channel : H - 1;
    next = next < H ? next : H - 1;
  }

  // The product of rows (D of them) with the channel's weights is added to sums.
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

  // before (2, N U), of which one is this step's and one the next one's, so that one barrier does: keep h.
  template <class Keep, class First>
  FUNCTION void begin(Keep keep, First h0, IN_SHARED Rows<R>* before) const {
    for (uint k = me; k < N * U; k += THREADS) {
      for (int r = 0; r < R; ++r) {
        uint s = first + r;
        before[k].of[r] = s < S && k < H ? keep[s * keep_step] * h0[(s * H + k) * first_step] : 0.0f;
        before[N * U + k].of[r] = 0.0f;
      }
    }
  }

  // What the states before step t are multiplied by.
  template <class Keep>
  FUNCTION void keep_of(int t, int T, Keep keep, IN_THREAD float (&kept)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) kept[r] = first + r < S && t < T ? keep[(t * S + first + r) * keep_step] : 0.0f;
  }

  // Backward: no product yet, and nothing carried.
  FUNCTION void begin_back(IN_SHARED Rows<R>* after, IN_THREAD float (&carry)[C][R]) const {
#pragma unroll
    for (int v = 0; v < C * R; ++v) carry[v / R][v % R] = 0.0f;
    for (uint k = me; k < N * U; k += THREADS) {
      for (int r = 0; r < R; ++r) after[k].of[r] = 0.0f;
    }
  }

  // Of all channels the products of the step after's gradient, which they share in `after`; at the end 0.
  FUNCTION void products(bool ends, IN_SHARED const Rows<R>* after, IN_THREAD float (&sums)[C][G][R]) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      go_to(c);
#pragma unroll
      for (int v = 0; v < G * R; ++v) sums[c][v / R][v % R] = 0.0f;
      if (!ends) product(after, sums[c]);
    }
    BARRIER  // all have read `after`
  }

  // A step's numbers; `states` are the states after each step, `h0` the first ones.
  template <class Keep, class First>
  FUNCTION void read(int t, int T, IN_DEVICE const Low* gates, IN_DEVICE const float* dh, IN_DEVICE const float* states,
                     First h0, Keep keep, IN_THREAD StepOfR<R>& step) const {
    keep_of(t, T, keep, step.kept);
    keep_of(t + 1, T, keep, step.after_keep);
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
