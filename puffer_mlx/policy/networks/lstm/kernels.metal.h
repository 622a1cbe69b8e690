// The recurrence of an LSTM. Shapes: scan.h; how a block walks through time: ops/recurrence/start.metal.h.

#pragma once

#include "cell.h"
#include "gpu/functions.metal.h"

// weight_hh (H, 4H): transposed
template <typename Low, int H, int R, int C, int THREADS, int G, int D, int U, int N>
kernel void lstm_forward(device const Low* z, device const Low* weight_hh, device const float* h0, device const float* c0,
                         device const float* keep, device const int* sizes, device float* h, device float* c,
                         device Low* gates, uint me, uint block) {
#include "recurrence/forward_start.metal.h"
  float cells[C][R];  // keep c of the step before
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R;
    cells[v / R][v % R] = channel < H && s < S ? keep[s * keep_step] * c0[(s * H + channel) * first_step] : 0.0f;
  }
  BARRIER
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
#include "recurrence/channel.metal.h"
      float sums[4][R];
#pragma unroll
      for (int v = 0; v < 4 * R; ++v) {
        uint s = first + v % R;
        sums[v / R][v % R] = s < S ? (float)z[((t * S + s) * 4 + v / R) * H + channel] : 0.0f;
      }
#include "recurrence/forward_product.metal.h"
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        uint row = t * S + first + r, j = row * 4 * H + channel;
        LSTMCell<float> cell = lstm_cell(sums[0][r], sums[1][r], sums[2][r], sums[3][r], cells[c_][r]);
        gates[j] = (Low)cell.i; gates[j + H] = (Low)cell.f;
        gates[j + 2 * H] = (Low)cell.g; gates[j + 3 * H] = (Low)cell.o;
        c[row * H + channel] = cell.c;
        h[row * H + channel] = cell.h;
        cells[c_][r] = kept[r] * cell.c;
        before[(t + 1) & 1][channel].of[r] = kept[r] * cell.h;
      }
    }
    BARRIER
  }
}

template <typename Low, int H, int R, int C, int THREADS, int G, int D, int U, int N>
kernel void lstm_backward(device const Low* gates, device const Low* weight_hh, device const float* c0,
                          device const float* keep, device const float* c, device const float* dh,
                          device const int* sizes, device Low* dz, device float* dh0, device float* dc0, uint me,
                          uint block) {
#include "recurrence/backward_start.metal.h"
  for (int t = T - 1; t >= -(int)first_step; --t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
#include "recurrence/channel.metal.h"
#pragma unroll
      for (int r = 0; r < R; ++r) sums[c_][r] = 0.0f;
      if (t == T - 1) continue;
#include "recurrence/backward_product.metal.h"
    }
    BARRIER  // all have read `after`
    if (t < 0) break;
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
#include "recurrence/channel.metal.h"
#define STATES c
#define FIRST c0
#include "recurrence/backward_read.metal.h"
      float cells[R];
#pragma unroll
      for (int r = 0; r < R; ++r) cells[r] = first + r < S ? c[(row + r) * H + channel] : 0.0f;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        float input = saved[0][r], forget = saved[1][r], g = saved[2][r], o = saved[3][r];
        float d = gradient[r] + after_keep[r] * sums[c_][r], out = squash(cells[r]);
        float dc = carry[c_][r] + d * o * (1.0f - out * out), cell = kept[r] * states[r];
        float parts[4] = {dc * g * input * (1.0f - input), dc * cell * forget * (1.0f - forget),
                          dc * input * (1.0f - g * g), d * out * o * (1.0f - o)};
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
          dz[((row + r) * 4 + gate) * H + channel] = (Low)parts[gate];
          after[gate * H + channel].of[r] = parts[gate];
        }
        carry[c_][r] = kept[r] * forget * dc;
      }
    }
    BARRIER
  }
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R;
    uint k = s * H + channel;
    if (channel >= H || s >= S || (first_step == 0 && k > 0)) continue;
    dh0[k] = keep[s * keep_step] * sums[v / R][v % R];
    dc0[k] = carry[v / R][v % R];
  }
}
