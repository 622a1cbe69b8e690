// What the kernels of a rollout's step call. A kernel is a whole step of a policy; each network has its own, in act.metal.h
// of its folder, made of encode.metal.h, its layers and choose.metal.h. What it computes is Policy.act of policy/policy.py.
//
// A block acts for R GROUPS agents. In shared memory are rows of features (GROUPS, H), each of R agents beside each other:
// a thread owns one channel of R agents at a time, so what it reads of the weights serves all of them, and its
// neighbours' are the weights behind. An agent's sums run over its own numbers in one order, so its results don't depend
// on who else is in its block, or on how many are.
//
// Weights are one array: the encoder's, the decoder's, the deviations of continuous actions, the network's. Products are
// transposed, (inputs, outputs), and their biases behind them, zeros where there are none: policy/acting_on_gpu.py.
//
// `sizes` has D, H, L, A, heads, n (the agents), and
//   6  numbers of an observation that are in shared memory at a time
//   7  1 if states are multiplied by 1 - terminal first
//   8  1 if a GELU follows the encoder's product
//   9  1 if some choices are illegal
//  10  1 if actions are continuous
//  11  of each head its number of choices

#pragma once

#include "gpu/functions.metal.h"

template <int V, int R>
struct Sums { float of[V][R]; };  // of V outputs of a channel, for R agents

// A channel's part of a product: rows (K,) of R agents with K rows of weights, V numbers `apart` in each, the next row
// `stride` on.
template <int V, int R>
FUNCTION Sums<V, R> multiply(IN_DEVICE const float* weight, uint apart, uint stride, IN_SHARED const Rows<R>* rows, uint K) {
  Sums<V, R> sums;
#pragma unroll
  for (int v = 0; v < V * R; ++v) sums.of[v / R][v % R] = 0.0f;
#pragma unroll 8
  for (uint k = 0; k < K; ++k) {
    Rows<R> row = rows[k];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float w = weight[v * apart];
#pragma unroll
      for (int r = 0; r < R; ++r) sums.of[v][r] += w * row.of[r];
    }
    weight += stride;
  }
  return sums;
}

FUNCTION float gelu(float x) {
  float distance = x < 0.0f ? -x : x;
  return (x < 0.0f ? 0.0f : x) - (distance > 13.0f ? 0.0f : distance * normal_tail(x));
}

// NaN is 0, infinities become `LARGEST` of policy/distributions.py.
FUNCTION float finite(float x) {
  if (x != x) return 0.0f;
  return x > 3.4028234e38f ? 3.4028e38f : x < -3.4028234e38f ? -3.4028e38f : x;
}
