// GPU kernels of the LSTM recurrence for training, forward and backward. Shapes: scan.h; loop over time:
// ops/recurrence/walk.metal.h.

#pragma once

#include "cell.h"
#include "recurrence/walk.metal.h"

// weight_hh (H, 4H) is transposed.
KERNEL lstm_forward<Low, H, R, C, THREADS, G, D, U, N>: Low z weight_hh, float h0 c0 not_done, int sizes{T S first_step not_done_step}
  -> float h c, Low gates {
  SHARED Rows<R> before[2 * N * U];
  int T = sizes.T;
  uint S = sizes.S, first_step = sizes.first_step, not_done_step = sizes.not_done_step;
  Walk<Low, H, R, C, THREADS, G, D, U, N> walk(weight_hh, S, first_step, not_done_step, me, block);
  walk.begin(not_done, h0, before);
  uint first = walk.first;
  float cells[C][R];  // not_done_t * c_{t-1}
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R;
    cells[v / R][v % R] = channel < H && s < S ? not_done[s * not_done_step] * c0[(s * H + channel) * first_step] : 0.0f;
  }
  BARRIER
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
      walk.go_to(c_);
      uint channel = walk.channel;
      float sums[G][R], kept[R];
#pragma unroll
      for (int v = 0; v < 4 * R; ++v) {
        uint s = first + v % R;
        sums[v / R][v % R] = s < S ? (float)z[((t * S + s) * 4 + v / R) * H + channel] : 0.0f;
      }
      walk.not_done_of(t + 1, T, not_done, kept);
      walk.product(before + (t & 1) * N * U, sums);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!walk.mine || first + r >= S) continue;
        uint row = t * S + first + r, j = row * 4 * H + channel;
        LSTMCell<float> cell = lstm_cell(sums[0][r], sums[1][r], sums[2][r], sums[3][r], cells[c_][r]);
        gates[j] = (Low)cell.i, gates[j + H] = (Low)cell.f;
        gates[j + 2 * H] = (Low)cell.g, gates[j + 3 * H] = (Low)cell.o;
        c[row * H + channel] = cell.c;
        h[row * H + channel] = cell.h;
        cells[c_][r] = kept[r] * cell.c;
        before[((t + 1) & 1) * N * U + channel].of[r] = kept[r] * cell.h;
      }
    }
    BARRIER
  }
}

KERNEL lstm_backward<Low, H, R, C, THREADS, G, D, U, N>: Low gates weight_hh, float c0 not_done c dh, int sizes{T S first_step not_done_step}
  -> Low dz, float dh0 dc0 {
  SHARED Rows<R> after[N * U];  // dL/d(W not_done h) of step t + 1
  int T = sizes.T;
  uint S = sizes.S, first_step = sizes.first_step, not_done_step = sizes.not_done_step;
  Walk<Low, H, R, C, THREADS, G, D, U, N> walk(weight_hh, S, first_step, not_done_step, me, block);
  float carry[C][R], sums[C][G][R];
  uint first = walk.first;
  walk.begin_back(after, carry);
  // With an initial state (first_step is 1), t = -1 computes the products for its gradient.
  for (int t = T - 1; t >= -(int)first_step; --t) {
    walk.products(t == T - 1, after, sums);
    if (t < 0) break;
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
      walk.go_to(c_);
      uint channel = walk.channel;
      StepOfR<R> step;
      walk.read(t, T, gates, dh, c, c0, not_done, step);
      float cells[R];
#pragma unroll
      for (int r = 0; r < R; ++r) cells[r] = first + r < S ? c[(t * S + first + r) * H + channel] : 0.0f;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!walk.mine || first + r >= S) continue;
        float input = step.saved[0][r], forget = step.saved[1][r], g = step.saved[2][r], o = step.saved[3][r];
        float d = step.gradient[r] + step.next_not_done[r] * sums[c_][0][r], out = squash(cells[r]);
        float dc = carry[c_][r] + d * o * (1.0f - out * out), cell = step.kept[r] * step.states[r];
        float parts[4] = {dc * g * input * (1.0f - input), dc * cell * forget * (1.0f - forget),
                          dc * input * (1.0f - g * g), d * out * o * (1.0f - o)};
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
          dz[((t * S + first + r) * 4 + gate) * H + channel] = (Low)parts[gate];
          after[gate * H + channel].of[r] = parts[gate];
        }
        carry[c_][r] = step.kept[r] * forget * dc;
      }
    }
    BARRIER
  }
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R, k = s * H + channel;
    if (channel >= H || s >= S || (first_step == 0 && k > 0)) continue;
    dh0[k] = not_done[s * not_done_step] * sums[v / R][0][v % R];
    dc0[k] = carry[v / R][v % R];
  }
}
