// What the kernels of a rollout's step call. A kernel is a whole step of a policy: act.kernel.h, made of encode.metal.h,
// the network's layers (layers.metal.h of its folder, a function of the Step) and choose.metal.h. What it computes is
// Policy.act of policy/policy.py. A whole rollout, environments included, is made of the same parts: rollout.kernel.h.
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
//  11  1 if observations are copied to `seen`
//  12  how far from 0 continuous actions and their means are at most; 0: as far as they are
//  13  how many numbers a policy's weights are
//  14  of each head its number of choices
//
// Where several policies act (SEATS > 0) each block acts by one of them, for rows that need not be neighbours: `seats`
// (blocks, 1 + R GROUPS) has of each block its policy's number, then its agents' rows; `weights` are the policies', one
// after the other. States alone lie as the blocks do, agent by agent, and n counts those. A row that is there twice, because
// a policy has too few for a block, is acted for twice: the same numbers are written to the same place. A block may act for
// several such crews, one after the other.
//
// Actions (n, heads), log-probabilities and values (n,) are written where they are to be: to the rollout's memory, which
// belongs to whoever fills it, as the environments do. So are the observations that a GPU with memory of its own has read
// from the host: `seen` (n, D) is its copy. To MLX these are inputs, and its outputs the network's states alone.

#pragma once

#include "gelu/activation.h"
#include "gpu/functions.metal.h"

#define WRITTEN(type, array) ((IN_DEVICE type*)(array))

template <int V, int R>
struct Sums { float of[V][R]; };  // of V outputs of a channel, for R agents

// A channel's part of a product: rows (K,) of R agents with K rows of weights, V numbers `apart` in each, the next row
// `stride` on. Weights come from far away, so those of the next rows are on their way while some are used.
template <int V, int R>
FUNCTION Sums<V, R> multiply(IN_DEVICE const float* weight, uint apart, uint stride, IN_SHARED const Rows<R>* rows, uint K) {
  constexpr uint U = V > 1 ? 8 : 16;  // rows at a time
  Sums<V, R> sums;
  float ahead[U][V];
#pragma unroll
  for (uint v = 0; v < V * R; ++v) sums.of[v / R][v % R] = 0.0f;
#pragma unroll
  for (uint v = 0; v < U * V; ++v) ahead[v / V][v % V] = v / V < K ? weight[v / V * stride + v % V * apart] : 0.0f;
  for (uint k = 0; k < K; k += U) {
    float now[U][V];
    uint next = k + U;
#pragma unroll
    for (uint v = 0; v < U * V; ++v) {
      now[v / V][v % V] = ahead[v / V][v % V];
      ahead[v / V][v % V] = next + v / V < K ? weight[(next + v / V) * stride + v % V * apart] : 0.0f;
    }
#pragma unroll
    for (uint u = 0; u < U; ++u) {
      if (k + u >= K) continue;
      Rows<R> row = rows[k + u];
#pragma unroll
      for (uint v = 0; v < V * R; ++v)
        sums.of[v / R][v % R] = MULTIPLY_ADD(now[u][v / R], row.of[v % R], sums.of[v / R][v % R]);
    }
  }
  return sums;
}

// A block's step: sizes, and where things are.
template <int R, int GROUPS, int THREADS, int SEATS>
struct Step {
  IN_DEVICE const int* sizes;
  uint me, D, H, L, A, heads, n, chunk;
  uint first, units;  // the block's first agent; how many channels its agents have, R beside each other
  IN_DEVICE const int* crew;  // who acts, and for which rows
  IN_SHARED Rows<R>* outputs;  // (GROUPS, A + 1)
  IN_SHARED Rows<R>* features;  // x and y
  IN_SHARED Rows<R>* x;  // (GROUPS, H), a layer's input
  IN_SHARED Rows<R>* y;  // (GROUPS, H), its output; a part of the observations before
  IN_SHARED Rows<R>* own;  // what is behind the features is the network's own
  IN_DEVICE const float *encoder, *decoder, *logstd, *network;
  IN_DEVICE const float *terminals, *noise, *states;
  IN_DEVICE const uint8_t* mask;
  IN_DEVICE float *actions, *logprobs, *values, *after;

  FUNCTION Step(IN_DEVICE const int* sizes_, IN_DEVICE const int* seats, IN_DEVICE const float* weights,
                IN_SHARED Rows<R>* room, uint me_, uint block)
      : sizes(sizes_), me(me_) {
    D = (uint)sizes[0], H = (uint)sizes[1], L = (uint)sizes[2], A = (uint)sizes[3], heads = (uint)sizes[4];
    n = (uint)sizes[5], chunk = (uint)sizes[6], units = H * GROUPS;
    outputs = room, features = outputs + (A + 1) * GROUPS;
    own = features + units + (chunk > H ? chunk : H) * GROUPS;
    turn_to(seats, weights, block);
  }

  // From now on it is the step of the agents of a block, or of one of its crews.
  FUNCTION void turn_to(IN_DEVICE const int* seats, IN_DEVICE const float* weights, uint block) {
    first = block * R * GROUPS;
    crew = seats + (SEATS > 0 ? block * (1 + R * GROUPS) : 0);
    encoder = weights + (SEATS > 0 ? (uint)crew[0] * (uint)sizes[13] : 0);
    decoder = encoder + (D + 1) * H, logstd = decoder + (H + 1) * (A + 1), network = logstd + heads;
  }

  // The row of a block's agent.
  FUNCTION uint place(uint agent) const { return SEATS > 0 ? (uint)crew[1 + agent] : first + agent; }

  // Of a block's agent the number k of its states, or 0 where they are forgotten.
  FUNCTION float state(uint k, uint agent) const {
    float number = first + agent < n ? states[k] : 0.0f;
    return first + agent < n && sizes[7] > 0 ? number * (1.0f - terminals[place(agent)]) : number;
  }

  // The network's state of a number, of all of the block's agents, becomes what is in `own`.
  FUNCTION void read_state(uint number) const {
    for (uint unit = me; unit < units; unit += THREADS) {
      uint agent = unit / H * R, k = (number * n + first + agent) * H + unit % H;
#pragma unroll
      for (int r = 0; r < R; ++r) own[unit].of[r] = state(k + r * H, agent + r);
    }
    BARRIER
  }

  // A layer's output becomes the next one's input.
  FUNCTION void next_layer() {
    BARRIER
    IN_SHARED Rows<R>* other = x;
    x = y;
    y = other;
  }
};
