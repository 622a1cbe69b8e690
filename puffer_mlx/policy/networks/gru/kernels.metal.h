// The recurrence of a GRU. Shapes: scan.h; how a block walks through time: ops/recurrence/start.metal.h.

#pragma once

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
        float reset = logistic(inputs[0][r] + sums[0][r]), hidden = sums[2][r];
        float u = logistic(inputs[1][r] + sums[1][r]), n = squash(inputs[2][r] + reset * hidden);
        float out = n + u * (before[t & 1][channel].of[r] - n);
        gates[j] = (Low)reset; gates[j + H] = (Low)u;
        gates[j + 2 * H] = (Low)n; gates[j + 3 * H] = (Low)hidden;
        h[row * H + channel] = out;
        before[(t + 1) & 1][channel].of[r] = kept[r] * out;
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
        float reset = saved[0][r], u = saved[1][r], n = saved[2][r];
        float d = gradient[r] + after_keep[r] * sums[c_][r];
        float dn = d * (1.0f - u) * (1.0f - n * n);
        float parts[3] = {dn * saved[3][r] * reset * (1.0f - reset),
                          d * (kept[r] * states[r] - n) * u * (1.0f - u), dn * reset};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          uint to = ((row + r) * 3 + gate) * H + channel;
          dz[to] = (Low)(gate < 2 ? parts[gate] : dn);
          dhidden[to] = (Low)parts[gate];
          after[gate * H + channel].of[r] = parts[gate];
        }
        carry[c_][r] = d * u;
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
