// MLP layers as a part of a step; x becomes their output. A layer has a weight (H, H), then a bias (H,).

#pragma once

#include "gpu/acting/functions.metal.h"

template <int R, int GROUPS, int THREADS, int PLAYERS>
FUNCTION void layers(IN_THREAD Step<R, GROUPS, THREADS, PLAYERS>& step) {
  uint H = step.H, units = step.units, me = step.me;
  if (step.first == 0 && me < 8) step.after[me] = 0.0f;  // no state
  for (uint layer = 0; layer < step.L; ++layer) {
    IN_DEVICE const float* weight = step.network + layer * (H + 1) * H;
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H;
      Sums<1, R> sums = multiply<1, R>(weight + channel, 0, H, step.x + unit - channel, H);
#pragma unroll
      for (int r = 0; r < R; ++r) step.y[unit].of[r] = gelu(weight[H * H + channel] + sums.of[0][r]);
    }
    step.next_layer();
  }
}
