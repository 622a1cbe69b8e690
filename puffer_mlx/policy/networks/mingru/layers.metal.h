// Compute the MinGRU layers in a step of the acting kernels. Replaces step.x, the encoder's features, by the last layer's output.
// Equations: cell.h; template parameters: gpu/acting/functions.metal.h.
//
// Weight of a layer: (H, 3H), with columns of hidden, gate, projection. States before and after the step: (L, n, H).

#pragma once

#include "cell.h"
#include "gpu/acting/functions.metal.h"

template <int R, int GROUPS, int THREADS, int PLAYERS>
FUNCTION void layers(IN_THREAD Step<R, GROUPS, THREADS, PLAYERS>& step) {
  uint H = step.H, n = step.n, first = step.first, units = step.units, me = step.me;
  for (uint layer = 0; layer < step.L; ++layer) {
    IN_DEVICE const float* weight = step.network + layer * 3 * H * H;
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H, agent = first + unit / H * R, k = (layer * n + agent) * H + channel;
      float before[R];
#pragma unroll
      for (int r = 0; r < R; ++r) before[r] = step.state(k + r * H, unit / H * R + r);
      Sums<3, R> sums = multiply<3, R>(weight + channel, H, 3 * H, step.x + unit - channel, H);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        MinGRUCell<float> cell = mingru_cell<float>(sums.of[0][r], sums.of[1][r], sums.of[2][r],
                                                    step.x[unit].of[r], before[r]);
        step.y[unit].of[r] = cell.out;
        if (agent + r < n) step.after[k + r * H] = cell.state;
      }
    }
    step.next_layer();
  }
}
