// MinGRU layers of many rows at a time, by matrix units. What is computed: cell.h.

#pragma once

#include "cell.h"
#include "gpu/matrix.metal.h"

// Of a layer's input x the gates, in u: g less 0.5, z, q, each H wide, by its transposed weight. So of 16 bits, too, the sign
// says on which side of its kink g is. 32 threads have all three of (16, 8)
// channels.
template <int EXACT, int H, int M, int THREADS, class Input, class Weight, class Gates>
FUNCTION void make_gates(Input x, Weight weight, Gates u, uint me) {
  constexpr uint ACROSS = H / 8, ITEMS = M / 16 * ACROSS;
  for (uint item = me / 32; item < ITEMS; item += THREADS / 32) {
    uint row = item / ACROSS * 16, column = item % ACROSS * 8;
    float sums[1][3][4];
    clear(sums);
    add_product<EXACT, H, 1, 3, H>(x, row, weight, column, me, sums);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      uint r = row + row_of(v, me), c = column + column_of(v, me);
      MinGRUGates<float> gates = mingru_gates(sums[0][0][v], sums[0][1][v], sums[0][2][v]);
      u.put(r, c, gates.g - 0.5f);
      u.put(r, c + H, gates.z);
      u.put(r, c + 2 * H, gates.q);
    }
  }
}

// A step of a layer: x to out, by its transposed weight and M states, which are multiplied by `keep` of their row first. u has
// room for the gates. The output is that of states as Low has them, as in training.
template <int EXACT, int H, int M, int THREADS, class Features, class Weight, class Gates>
FUNCTION void step_rows(Features x, Features out, Weight weight, Gates u, IN_SHARED float* states, IN_SHARED const float* keep,
                        uint me) {
  make_gates<EXACT, H, M, THREADS>(x, weight, u, me);
  BARRIER
  for (uint k = me; k < M * H; k += THREADS) {
    uint row = k / H, channel = k % H;
    float state = mingru_state(u.at(row, channel + H), u.at(row, channel) + 0.5f, keep[row] * states[k]);
    states[k] = state;
    out.put(row, channel, mingru_out(u.at(row, channel + 2 * H), x.at(row, channel), out.rounded(state)));
  }
}
