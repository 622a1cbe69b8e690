// MinGRU layers as a part of a step: x becomes their output. A layer: cell.h. Its weight (H, 3H): hidden, gate,
// projection. states, after (L, n, H).
#include "cell.h"
  for (uint layer = 0; layer < L; ++layer) {
    IN_DEVICE const float* weight = network + layer * 3 * H * H;
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H, agent = first + unit / H * R, k = (layer * n + agent) * H + channel;
      float before[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        bool in = agent + r < n;
        before[r] = in ? states[k + r * H] : 0.0f;
        if (in && sizes[7] > 0) before[r] *= 1.0f - terminals[PLACE(unit / H * R + r)];
      }
      Sums<3, R> sums = multiply<3, R>(weight + channel, H, 3 * H, x + unit - channel, H);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        MinGRUCell<float> cell = mingru_cell<float>(sums.of[0][r], sums.of[1][r], sums.of[2][r], x[unit].of[r], before[r]);
        y[unit].of[r] = cell.out;
        if (agent + r < n) after[k + r * H] = cell.state;
      }
    }
    BARRIER
    IN_SHARED Rows<R>* other = x;
    x = y;
    y = other;
  }
