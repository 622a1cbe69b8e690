// Code shared by the kernels that act. act.kernel.h computes one step of a policy (Policy.act of policy/policy.py) from
// encode.metal.h, the network's layers (function `layers` of its layers.metal.h) and choose.metal.h. rollout.kernel.h computes
// complete rollouts, with environments, from the same functions.
//
// A block acts for R GROUPS agents. Shared memory has rows of features (GROUPS, H) with R agents side by side: a thread computes one
// channel of R agents at a time, so each weight is read once for R agents, and adjacent threads read adjacent weights. Sums are added
// in a fixed order, so an agent's results don't depend on the other agents of its block.
//
// All weights are one array: encoder, decoder, log standard deviations of continuous actions, network. Matrices are transposed,
// (inputs, outputs), and followed by their biases, which are zeros if the layer has none (policy/acting_on_gpu.py).
//
// With several policies (PLAYERS > 0), each block acts by one policy, for rows that need not be adjacent. `block_rows`
// (blocks, 1 + R GROUPS) lists for each block the policy's index and its agents' rows; `weights` holds the policies one after the
// other. States are in block order, and n counts them. If a policy has too few agents for a block, a row is repeated, which writes
// the same numbers to the same place twice. A block may act for several such groups in sequence.
//
// Actions (n, heads), log-probabilities and values (n,) are written directly to the rollout's memory. So is `seen` (n, D), the
// copy of the observations on a GPU with separate memory. For MLX these are inputs; the only outputs are the network's states.

#pragma once

#include "gelu/activation.h"
#include "gpu/functions.metal.h"

// Indices of `sizes`, in the order of ActingSizes in policy/acting_on_gpu.py, which documents them.
struct ActingSizes {
  enum { D, H, L, A, HEADS, AGENTS, CHUNK, RESETS, GELU, HAS_MASK, CONTINUOUS, COPIES, LIMIT, WEIGHTS, CHOICES };
};

#define WRITTEN(type, array) ((IN_DEVICE type*)(array))

template <int V, int R>
struct Sums { float of[V][R]; };  // V outputs of one channel for R agents

// Multiply the rows (K,) of R agents by V columns of a weight. apart: distance of the columns; stride: distance of the weight's rows.
// The weights of the next rows are loaded while the current ones are used.
template <int V, int R>
FUNCTION Sums<V, R> multiply(IN_DEVICE const float* weight, uint apart, uint stride, IN_SHARED const Rows<R>* rows, uint K) {
  constexpr uint U = V > 1 ? 8 : 16;  // rows of the weight at a time
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

// Sizes and pointers of a block's step.
template <int R, int GROUPS, int THREADS, int PLAYERS>
struct Step {
  IN_DEVICE const int* sizes;
  uint me, D, H, L, A, heads, n, chunk;
  uint first, units;  // first agent of the block; channels of its agents, in groups of R agents
  IN_DEVICE const int* members;  // policy index and rows of the agents
  IN_SHARED Rows<R>* outputs;  // (GROUPS, A + 1)
  IN_SHARED Rows<R>* features;  // x and y
  IN_SHARED Rows<R>* x;  // (GROUPS, H), a layer's input
  IN_SHARED Rows<R>* y;  // (GROUPS, H), the layer's output, or a chunk of observations in `encode`
  IN_SHARED Rows<R>* own;  // scratch memory of the network, after the features
  IN_DEVICE const float *encoder, *decoder, *logstd, *network;
  IN_DEVICE const float *terminals, *noise, *states;
  IN_DEVICE const uint8_t* mask;
  IN_DEVICE float *actions, *logprobs, *values, *after;

  FUNCTION Step(IN_DEVICE const int* sizes_, IN_DEVICE const int* block_rows, IN_DEVICE const float* weights,
                IN_SHARED Rows<R>* room, uint me_, uint block)
      : sizes(sizes_), me(me_) {
    D = (uint)sizes[ActingSizes::D], H = (uint)sizes[ActingSizes::H], L = (uint)sizes[ActingSizes::L];
    A = (uint)sizes[ActingSizes::A], heads = (uint)sizes[ActingSizes::HEADS], n = (uint)sizes[ActingSizes::AGENTS];
    chunk = (uint)sizes[ActingSizes::CHUNK], units = H * GROUPS;
    outputs = room, features = outputs + (A + 1) * GROUPS;
    own = features + units + (chunk > H ? chunk : H) * GROUPS;
    turn_to(block_rows, weights, block);
  }

  // Select the agents and the policy of block `block` of `block_rows`.
  FUNCTION void turn_to(IN_DEVICE const int* block_rows, IN_DEVICE const float* weights, uint block) {
    first = block * R * GROUPS;
    members = block_rows + (PLAYERS > 0 ? block * (1 + R * GROUPS) : 0);
    encoder = weights + (PLAYERS > 0 ? (uint)members[0] * (uint)sizes[ActingSizes::WEIGHTS] : 0);
    decoder = encoder + (D + 1) * H, logstd = decoder + (H + 1) * (A + 1), network = logstd + heads;
  }

  // Row of an agent of the block.
  FUNCTION uint place(uint agent) const { return PLAYERS > 0 ? (uint)members[1 + agent] : first + agent; }

  // State number k of an agent of the block; 0 after an episode's end.
  FUNCTION float state(uint k, uint agent) const {
    float number = first + agent < n ? states[k] : 0.0f;
    return first + agent < n && sizes[ActingSizes::RESETS] > 0 ? number * (1.0f - terminals[place(agent)]) : number;
  }

  // Load state `number` of all agents of the block into `own`.
  FUNCTION void read_state(uint number) const {
    for (uint unit = me; unit < units; unit += THREADS) {
      uint agent = unit / H * R, k = (number * n + first + agent) * H + unit % H;
#pragma unroll
      for (int r = 0; r < R; ++r) own[unit].of[r] = state(k + r * H, agent + r);
    }
    BARRIER
  }

  // Make the layer's output the next layer's input.
  FUNCTION void next_layer() {
    BARRIER
    IN_SHARED Rows<R>* other = x;
    x = y;
    y = other;
  }
};
