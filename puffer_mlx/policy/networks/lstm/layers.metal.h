// Compute the LSTM layers in a step of the acting kernels: replaces x by their output. Equations: cell.h.
//
// Weights of a layer: of the input and of h, (H, 4H) each, then the sum of both biases (4H,), in the order i, f, g, o. States
// before and after the step: (2L, n, H), with h and then c of each layer.

#pragma once

#include "cell.h"
#include "gpu/acting/functions.metal.h"

template <int R, int GROUPS, int THREADS, int PLAYERS>
FUNCTION void layers(IN_THREAD Step<R, GROUPS, THREADS, PLAYERS>& step) {
  uint H = step.H, n = step.n, first = step.first, units = step.units, me = step.me;
  for (uint layer = 0; layer < step.L; ++layer) {
    IN_DEVICE const float* weight = step.network + layer * (8 * H + 4) * H;
    step.read_state(2 * layer);
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H, agent = first + unit / H * R, k = (2 * layer * n + agent) * H + channel;
      float before[R];
#pragma unroll
      for (int r = 0; r < R; ++r) before[r] = step.state(k + (n + r) * H, unit / H * R + r);
      Sums<4, R> sums = multiply<4, R>(weight + channel, H, 4 * H, step.x + unit - channel, H);
      Sums<4, R> more = multiply<4, R>(weight + 4 * H * H + channel, H, 4 * H, step.own + unit - channel, H);
      IN_DEVICE const float* bias = weight + 8 * H * H + channel;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float gates[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) gates[v] = bias[v * H] + sums.of[v][r] + more.of[v][r];
        LSTMCell<float> cell = lstm_cell(gates[0], gates[1], gates[2], gates[3], before[r]);
        step.y[unit].of[r] = cell.h;
        if (agent + r < n) {
          step.after[k + r * H] = cell.h;
          step.after[k + (n + r) * H] = cell.c;
        }
      }
    }
    step.next_layer();
  }
}
