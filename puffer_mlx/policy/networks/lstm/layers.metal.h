// LSTM layers as a part of a step: x becomes their output. A layer: cell.h. Its weights (H, 4H) of the input and
// of h, then the sum of both biases (4H,): i, f, g, o. states, after (2L, n, H): of each layer h, then c.
#include "cell.h"
  for (uint layer = 0; layer < L; ++layer) {
    IN_DEVICE const float* weight = network + layer * (8 * H + 4) * H;
    for (uint unit = me; unit < units; unit += THREADS) {
      uint agent = first + unit / H * R, k = (2 * layer * n + agent) * H + unit % H;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        bool in = agent + r < n;
        float h = in ? states[k + r * H] : 0.0f;
        own[unit].of[r] = in && sizes[7] > 0 ? h * (1.0f - terminals[PLACE(unit / H * R + r)]) : h;
      }
    }
    BARRIER
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H, agent = first + unit / H * R, k = (2 * layer * n + agent) * H + channel;
      float before[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        bool in = agent + r < n;
        before[r] = in ? states[k + (n + r) * H] : 0.0f;
        if (in && sizes[7] > 0) before[r] *= 1.0f - terminals[PLACE(unit / H * R + r)];
      }
      Sums<4, R> sums = multiply<4, R>(weight + channel, H, 4 * H, x + unit - channel, H);
      Sums<4, R> more = multiply<4, R>(weight + 4 * H * H + channel, H, 4 * H, own + unit - channel, H);
      IN_DEVICE const float* bias = weight + 8 * H * H + channel;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float gates[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) gates[v] = bias[v * H] + sums.of[v][r] + more.of[v][r];
        LSTMCell<float> cell = lstm_cell(gates[0], gates[1], gates[2], gates[3], before[r]);
        y[unit].of[r] = cell.h;
        if (agent + r < n) {
          after[k + r * H] = cell.h;
          after[k + (n + r) * H] = cell.c;
        }
      }
    }
    BARRIER
    IN_SHARED Rows<R>* other = x;
    x = y;
    y = other;
  }
