// The recurrence of a GRU. Shapes: scan.h; how a block walks through time: ops/recurrence/start.metal.h.

#pragma once

#include "cell.h"
#include "gpu/functions.metal.h"

// weight_hh (H, 3H): transposed
template <typename Low, int H, int R, int C, int THREADS, int G, int D, int U, int N>
kernel void gru_forward(device const Low* z, device const Low* weight_hh, device const Low* bias_hh, device const float* h0,
                        device const float* keep, device const int* sizes, device float* h, device Low* gates, uint me,
                        uint block) {
#include "recurrence/forward_start.metal.h"
  BARRIER
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
#include "recurrence/channel.metal.h"
      float sums[3][R], inputs[3][R];
#pragma unroll
      for (int v = 0; v < 3 * R; ++v) {
        uint s = first + v % R;
        sums[v / R][v % R] = (float)bias_hh[v / R * H + channel];
        inputs[v / R][v % R] = s < S ? (float)z[((t * S + s) * 3 + v / R) * H + channel] : 0.0f;
      }
#include "recurrence/forward_product.metal.h"
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        uint row = t * S + first + r, j = row * 4 * H + channel;
        GRUCell<float> cell = gru_cell<float>(inputs[0][r] + sums[0][r], inputs[1][r] + sums[1][r], inputs[2][r],
                                              sums[2][r], before[t & 1][channel].of[r]);
        gates[j] = (Low)cell.r; gates[j + H] = (Low)cell.u;
        gates[j + 2 * H] = (Low)cell.n; gates[j + 3 * H] = (Low)sums[2][r];
        h[row * H + channel] = cell.h;
        before[(t + 1) & 1][channel].of[r] = kept[r] * cell.h;
      }
    }
    BARRIER
  }
}

template <typename Low, int H, int R, int C, int THREADS, int G, int D, int U, int N>
kernel void gru_backward(device const Low* gates, device const Low* weight_hh, device const float* h0,
                         device const float* keep, device const float* h, device const float* dh,
                         device const int* sizes, device Low* dz, device Low* dhidden, device float* dh0, uint me,
                         uint block) {
#include "recurrence/backward_start.metal.h"
  for (int t = T - 1; t >= -(int)first_step; --t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
#include "recurrence/channel.metal.h"
#pragma unroll
      for (int r = 0; r < R; ++r) sums[c_][r] = carry[c_][r];
      if (t == T - 1) continue;
#include "recurrence/backward_product.metal.h"
    }
    BARRIER  // all have read `after`
    if (t < 0) break;
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
#include "recurrence/channel.metal.h"
#define STATES h
#define FIRST h0
#include "recurrence/backward_read.metal.h"
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        float d = gradient[r] + after_keep[r] * sums[c_][r];
        GRUGradient<float> by = gru_gradient(saved[0][r], saved[1][r], saved[2][r], saved[3][r], kept[r] * states[r], d);
        float parts[3] = {by.r, by.u, by.hn};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          uint to = ((row + r) * 3 + gate) * H + channel;
          dz[to] = (Low)(gate < 2 ? parts[gate] : by.n);
          dhidden[to] = (Low)parts[gate];
          after[gate * H + channel].of[r] = parts[gate];
        }
        carry[c_][r] = by.before;
      }
    }
    BARRIER
  }
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R;
    uint k = s * H + channel;
    if (channel < H && s < S && (first_step == 1 || k == 0)) dh0[k] = keep[s * keep_step] * sums[v / R][v % R];
  }
}
