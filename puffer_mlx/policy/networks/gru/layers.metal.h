// Compute the GRU layers and the final norm in a step of the acting kernels: replaces x by their output. Equations: cell.h.
//
// Weights of a layer: of the input and of h, (H, 3H) each, then biases (4H,): of r and u (sums of both biases), n's input bias, n's
// state bias. The norm's weight (H,) follows the layers. States before and after the step: (L, n, H).

#pragma once

#include "cell.h"
#include "gpu/acting/functions.metal.h"
#include "norm/equations.h"

template <int R, int GROUPS, int THREADS, int PLAYERS>
FUNCTION void layers(IN_THREAD Step<R, GROUPS, THREADS, PLAYERS>& step) {
  uint H = step.H, n = step.n, first = step.first, units = step.units, me = step.me;
  IN_SHARED Rows<R>* hidden = step.own;
  IN_SHARED Rows<R>* residual = hidden + units;  // input of the first layer
  IN_SHARED float* squares = (IN_SHARED float*)(residual + units);  // (4, agents)
  for (uint unit = me; unit < units; unit += THREADS) {
#pragma unroll
    for (int r = 0; r < R; ++r) residual[unit].of[r] = step.x[unit].of[r];
  }
  for (uint layer = 0; layer < step.L; ++layer) {
    IN_DEVICE const float* weight = step.network + layer * (6 * H + 4) * H;
    step.read_state(layer);
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H, agent = first + unit / H * R, k = (layer * n + agent) * H + channel;
      Sums<3, R> sums = multiply<3, R>(weight + channel, H, 3 * H, step.x + unit - channel, H);
      Sums<3, R> more = multiply<3, R>(weight + 3 * H * H + channel, H, 3 * H, hidden + unit - channel, H);
      IN_DEVICE const float* bias = weight + 6 * H * H + channel;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        GRUCell<float> cell = gru_cell<float>(bias[0] + sums.of[0][r] + more.of[0][r],
                                              bias[H] + sums.of[1][r] + more.of[1][r], bias[2 * H] + sums.of[2][r],
                                              bias[3 * H] + more.of[2][r], hidden[unit].of[r]);
        step.y[unit].of[r] = cell.h;
        if (agent + r < n) step.after[k + r * H] = cell.h;
      }
    }
    step.next_layer();
  }
  // Four threads compute the sum of squares of an agent.
  constexpr uint agents = R * GROUPS;
  if (me < 4 * agents) {
    float square = 0.0f;
    for (uint channel = me / agents; channel < H; channel += 4) {
      uint r = me % R, k = me % agents / R * H + channel;
      float v = step.x[k].of[r] + residual[k].of[r];
      square += v * v;
    }
    squares[me] = square;
  }
  BARRIER
  if (me < agents) {
    float square = squares[me] + squares[me + agents] + squares[me + 2 * agents] + squares[me + 3 * agents];
    squares[me] = inverse_rms(square, (float)H, 1.1920929e-7f);  // EPSILON of ops/norm
  }
  BARRIER
  for (uint unit = me; unit < units; unit += THREADS) {
    float scale = step.network[step.L * (6 * H + 4) * H + unit % H];
#pragma unroll
    for (int r = 0; r < R; ++r)
      step.x[unit].of[r] = (step.x[unit].of[r] + residual[unit].of[r]) * squares[unit / H * R + r] * scale;
  }
  BARRIER
}
