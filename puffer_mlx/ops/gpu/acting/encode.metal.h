// Encode the observations: the first part of a policy step (`Step` in functions.metal.h). The result is step.x.
//
//   observations  pointer of type From, in any address space
//   observed      row of the block's first agent in observations; row_stride: distance between the rows of two agents. If PLACED, both
//                 are unused, and step.place(agent) returns the row
//   seen          copies of the observations, by step.place(agent); written if sizes[COPIES] > 0

#pragma once

#include "gpu/acting/functions.metal.h"

template <int PLACED, typename Low, class From, int R, int GROUPS, int THREADS, int PLAYERS>
FUNCTION void encode(IN_THREAD Step<R, GROUPS, THREADS, PLAYERS>& step, From observations, uint observed, uint row_stride,
                     IN_DEVICE Low* seen) {
  uint D = step.D, H = step.H, n = step.n, chunk = step.chunk, first = step.first, units = step.units, me = step.me;
  IN_SHARED Rows<R>* x = step.x = step.features;  // layers swap x and y, so set both: only the memory after x has room for a chunk
  IN_SHARED Rows<R>* y = step.y = x + units;
  for (uint from = 0; from < D; from += chunk) {
    uint width = D - from < chunk ? D - from : chunk, numbers = width * R * GROUPS;
    BARRIER  // the previous chunk has been read
    for (uint start = me; start < numbers; start += 8 * THREADS) {
      float part[8];  // all loads start before the first one is used: they may be from slow host memory
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = k / width;
        bool in = k < numbers && first + agent < n;
        uint row = !PLACED ? observed + agent * row_stride : in ? step.place(agent) : 0;
        part[v] = in ? (float)observations[row * D + from + k % width] : 0.0f;
      }
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = k / width;
        if (k >= numbers) continue;
        y[agent / R * width + k % width].of[agent % R] = part[v];
        if (step.sizes[ActingSizes::COPIES] > 0 && first + agent < n) seen[step.place(agent) * D + from + k % width] = (Low)part[v];
      }
    }
    BARRIER
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H;
      Sums<1, R> sums = multiply<1, R>(step.encoder + from * H + channel, 0, H, y + unit / H * width, width);
      bool activated = step.sizes[ActingSizes::GELU] > 0 && from + chunk >= D;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float feature = (from > 0 ? x[unit].of[r] : step.encoder[D * H + channel]) + sums.of[0][r];
        x[unit].of[r] = activated ? gelu(feature) : feature;
      }
    }
  }
  BARRIER
}
