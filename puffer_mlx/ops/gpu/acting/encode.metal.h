// First part of a step: the encoder's features of the observations, whose row `observed` is that of the block's first agent;
// with SEATS those that `place` says. From: a pointer to them, in whatever memory.

#pragma once

#include "gpu/acting/functions.metal.h"

#define WIDE 512  // numbers of an observation that is likely to be mostly zeros: a map's cells, a one among many each

// `multiply`, of the numbers that aren't zero for all R agents: `some` has a bit for each. The sums are the same.
template <int R>
FUNCTION Sums<1, R> multiply_some(IN_DEVICE const float* weight, uint stride, IN_SHARED const Rows<R>* rows,
                                  IN_SHARED const uint* some, uint K) {
  constexpr uint U = 8;  // weights on their way together
  Sums<1, R> sums;
#pragma unroll
  for (uint r = 0; r < R; ++r) sums.of[0][r] = 0.0f;
  for (uint from = 0; from < K; from += 32) {
    uint left = some[from / 32];
    while (left != 0) {
      uint at[U];
      float now[U];
#pragma unroll
      for (uint u = 0; u < U; ++u) {
        at[u] = left != 0 ? from + LOWEST_BIT(left) : K;
        left &= left - 1;
        now[u] = at[u] < K ? weight[at[u] * stride] : 0.0f;
      }
#pragma unroll
      for (uint u = 0; u < U; ++u) {
        if (at[u] >= K) continue;
        Rows<R> row = rows[at[u]];
#pragma unroll
        for (uint r = 0; r < R; ++r) sums.of[0][r] = MULTIPLY_ADD(now[u], row.of[r], sums.of[0][r]);
      }
    }
  }
  return sums;
}

template <typename Low, class From, int R, int GROUPS, int THREADS, int SEATS>
FUNCTION void encode(IN_THREAD Step<R, GROUPS, THREADS, SEATS>& step, From observations, uint observed, IN_DEVICE Low* seen) {
  uint D = step.D, H = step.H, n = step.n, chunk = step.chunk, first = step.first, units = step.units, me = step.me;
  IN_SHARED Rows<R>* x = step.x = step.features;  // layers have swapped them, and this y has room for a chunk
  IN_SHARED Rows<R>* y = step.y = x + units;
  uint words = (chunk + 31) / 32;  // of bits, which lie where outputs will: of each group's agents, who sees something
  IN_SHARED uint* some = (IN_SHARED uint*)step.outputs;
  bool wide = D >= WIDE && 4 * words <= sizeof(Rows<R>) * (step.A + 1);
  for (uint from = 0; from < D; from += chunk) {
    uint width = D - from < chunk ? D - from : chunk, numbers = width * R * GROUPS;
    BARRIER  // the part before has been read
    for (uint start = me; start < numbers; start += 8 * THREADS) {
      float part[8];  // on their way together: they may come from the host
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = k / width;
        bool in = k < numbers && first + agent < n;
        part[v] = in ? (float)observations[(SEATS > 0 ? step.place(agent) : observed + agent) * D + from + k % width] : 0.0f;
      }
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = k / width;
        if (k >= numbers) continue;
        y[agent / R * width + k % width].of[agent % R] = part[v];
        if (step.sizes[11] > 0 && first + agent < n) seen[step.place(agent) * D + from + k % width] = (Low)part[v];
      }
    }
    BARRIER
    for (uint word = me; wide && word < words * GROUPS; word += THREADS) {
      uint bits = 0, begins = word % words * 32, ends = begins + 32 < width ? begins + 32 : width;
      for (uint k = begins; k < ends; ++k) {
        Rows<R> row = y[word / words * width + k];
        bool any = false;
#pragma unroll
        for (int r = 0; r < R; ++r) any = any || row.of[r] != 0.0f;
        bits |= (uint)any << (k - begins);
      }
      some[word] = bits;
    }
    if (wide) BARRIER
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H, group = unit / H;
      IN_DEVICE const float* weight = step.encoder + from * H + channel;
      IN_SHARED const Rows<R>* rows = y + group * width;
      Sums<1, R> sums = wide ? multiply_some<R>(weight, H, rows, some + group * words, width)
                             : multiply<1, R>(weight, 0, H, rows, width);
      bool activated = step.sizes[8] > 0 && from + chunk >= D;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float feature = (from > 0 ? x[unit].of[r] : step.encoder[D * H + channel]) + sums.of[0][r];
        x[unit].of[r] = activated ? gelu(feature) : feature;
      }
    }
  }
  BARRIER
}
