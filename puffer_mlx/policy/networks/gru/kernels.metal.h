// GPU kernels of the GRU recurrence for training, forward and backward. Shapes: scan.h; loop over time:
// ops/recurrence/walk.metal.h.

#pragma once

#include "cell.h"
#include "recurrence/walk.metal.h"

// weight_hh (H, 3H) is transposed.
KERNEL gru_forward<Low, H, R, C, THREADS, G, D, U, N>: Low z weight_hh bias_hh, float h0 not_done, int sizes{T S first_step not_done_step}
  -> float h, Low gates {
  SHARED Rows<R> before[2 * N * U];
  int T = sizes.T;
  uint S = sizes.S;
  Walk<Low, H, R, C, THREADS, G, D, U, N> walk(weight_hh, S, sizes.first_step, sizes.not_done_step, me, block);
  walk.begin(not_done, h0, before);
  BARRIER
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
      walk.go_to(c_);
      uint channel = walk.channel, first = walk.first;
      float sums[G][R], inputs[3][R], kept[R];
#pragma unroll
      for (int v = 0; v < 3 * R; ++v) {
        uint s = first + v % R;
        sums[v / R][v % R] = (float)bias_hh[v / R * H + channel];
        inputs[v / R][v % R] = s < S ? (float)z[((t * S + s) * 3 + v / R) * H + channel] : 0.0f;
      }
      walk.not_done_of(t + 1, T, not_done, kept);
      walk.product(before + (t & 1) * N * U, sums);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!walk.mine || first + r >= S) continue;
        uint row = t * S + first + r, j = row * 4 * H + channel;
        GRUCell<float> cell = gru_cell<float>(inputs[0][r] + sums[0][r], inputs[1][r] + sums[1][r], inputs[2][r],
                                              sums[2][r], before[(t & 1) * N * U + channel].of[r]);
        gates[j] = (Low)cell.r, gates[j + H] = (Low)cell.u;
        gates[j + 2 * H] = (Low)cell.n, gates[j + 3 * H] = (Low)sums[2][r];
        h[row * H + channel] = cell.h;
        before[((t + 1) & 1) * N * U + channel].of[r] = kept[r] * cell.h;
      }
    }
    BARRIER
  }
}

KERNEL gru_backward<Low, H, R, C, THREADS, G, D, U, N>: Low gates weight_hh, float h0 not_done h dh, int sizes{T S first_step not_done_step}
  -> Low dz dhidden, float dh0 {
  SHARED Rows<R> after[N * U];  // gradients of the products W hp of step t + 1
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
      walk.read(t, T, gates, dh, h, h0, not_done, step);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!walk.mine || first + r >= S) continue;
        float d = step.gradient[r] + step.next_not_done[r] * (carry[c_][r] + sums[c_][0][r]);
        GRUGradient<float> by = gru_gradient(step.saved[0][r], step.saved[1][r], step.saved[2][r], step.saved[3][r],
                                             step.kept[r] * step.states[r], d);
        float parts[3] = {by.r, by.u, by.hn};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          uint to = ((t * S + first + r) * 3 + gate) * H + channel;
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
    uint channel = me + v / R * THREADS, s = first + v % R, k = s * H + channel;
    if (channel >= H || s >= S || (first_step == 0 && k > 0)) continue;
    dh0[k] = not_done[s * not_done_step] * (carry[v / R][v % R] + sums[v / R][0][v % R]);
  }
}
