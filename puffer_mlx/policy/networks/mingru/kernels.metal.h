// GPU kernels of the MinGRU recurrence for training, forward and backward: gates, recurrence and highway. Shapes: scan.h.
//
// The gates don't depend on the state, so a thread computes one channel of one segment for all steps, and adjacent threads read
// adjacent elements. A thread reads AHEAD steps before it stores any of them. Otherwise each step would wait for memory, because
// the compiler must assume that a store changes later loads.
//
// first_step, not_done_step: stride of the first state per channel, and of `not_done` per row; 0 if all share one value, else 1.
// `dfirst` has the size of `first`.

#pragma once

#include "cell.h"
#include "gpu/functions.metal.h"

KERNEL mingru_forward<Low, FAST>: Low u x, float first not_done, int sizes{T S H first_step not_done_step} -> Low out, float states {
  const int AHEAD = 8;
  int T = sizes.T;
  uint S = sizes.S, H = sizes.H, first_step = sizes.first_step, not_done_step = sizes.not_done_step;
  if (i < S * H) {
    float state = first[i * first_step];
    uint row = i / H, channel = i % H;
    for (int t = 0; t < T; t += AHEAD) {
      float hidden[AHEAD], gate[AHEAD], projection[AHEAD], input[AHEAD], kept[AHEAD];
#pragma unroll
      for (int v = 0; v < AHEAD; ++v) {
        bool in = t + v < T;
        uint r = row + v * S, k = r * H + channel, j = 3 * r * H + channel;
        hidden[v] = in ? (float)u[j] : 0.0f;
        gate[v] = in ? (float)u[j + H] : 0.0f;
        projection[v] = in ? (float)u[j + 2 * H] : 0.0f;
        input[v] = in ? (float)x[k] : 0.0f;
        kept[v] = in ? not_done[r * not_done_step] : 0.0f;
      }
#pragma unroll
      for (int v = 0; v < AHEAD; ++v) {
        if (t + v < T) {
          uint k = (row + v * S) * H + channel;
          MinGRUCell<float> cell = mingru_cell(hidden[v], gate[v], projection[v], input[v], kept[v] * state);
          state = cell.state;
          states[k] = state;
          out[k] = (Low)cell.out;
        }
      }
      row += AHEAD * S;
    }
  }
}

KERNEL mingru_backward<Low, FAST>: Low u x, float first not_done states, Low dout, int sizes{T S H first_step not_done_step}
  -> Low du dx, float dfirst {
  const int AHEAD = 8;
  int T = sizes.T;
  uint S = sizes.S, H = sizes.H, first_step = sizes.first_step, not_done_step = sizes.not_done_step;
  if (i < S * H) {
    float carry = 0.0f;
    uint row = i / H + (T - 1) * S, channel = i % H;
    float after = states[row * H + channel];  // state after the step (the loop reads the previous one)
    for (int t = T - 1; t >= 0; t -= AHEAD) {
      float hidden[AHEAD], gate[AHEAD], projection[AHEAD], input[AHEAD], gradient[AHEAD], before[AHEAD], kept[AHEAD];
#pragma unroll
      for (int v = 0; v < AHEAD; ++v) {
        bool in = t >= v;
        uint r = row - v * S, k = r * H + channel, j = 3 * r * H + channel;
        hidden[v] = in ? (float)u[j] : 0.0f;
        gate[v] = in ? (float)u[j + H] : 0.0f;
        projection[v] = in ? (float)u[j + 2 * H] : 0.0f;
        input[v] = in ? (float)x[k] : 0.0f;
        gradient[v] = in ? (float)dout[k] : 0.0f;
        before[v] = t > v ? states[k - S * H] : first[i * first_step];
        kept[v] = in ? not_done[r * not_done_step] : 0.0f;
      }
#pragma unroll
      for (int v = 0; v < AHEAD; ++v) {
        if (t >= v) {
          uint r = row - v * S, k = r * H + channel, j = 3 * r * H + channel;
          MinGRUGradient<float> by;
          mingru_gradient(hidden[v], gate[v], projection[v], input[v], kept[v], before[v], after, gradient[v], carry, by);
          du[j] = (Low)by.hidden;
          du[j + H] = (Low)by.gate;
          du[j + 2 * H] = (Low)by.projection;
          dx[k] = (Low)by.x;
          after = before[v];
        }
      }
      row -= AHEAD * S;
    }
    if (first_step == 1 || i == 0) dfirst[i] = carry;
  }
}
