// A block's rows and the samples that they are; the gradients by weights that its threads have of them.

#pragma once

#include "../closed_form/sample.metal.h"
#include "advantages/step.metal.h"
#include "gpu/matrix.metal.h"

// A row's place among the samples (T, S).
template <int SEGMENTS, int STEPS>
FUNCTION uint sample_of(int row, int chunk, uint segment, uint S) {
  return (uint)(chunk * STEPS + row / SEGMENTS) * S + segment + (uint)(row % SEGMENTS);
}

// A chunk's observations (M, D), and zeros up to SEEN of them.
template <int SEGMENTS, int STEPS, int D, int SEEN, int THREADS, class Observed, class Seen>
FUNCTION void see(IN_DEVICE const Observed* observations, Seen seen, int chunk, uint segment, uint S, uint me) {
  constexpr int ALL = SEGMENTS * STEPS * SEEN, AHEAD = 8;
  for (int k = (int)me; k < ALL; k += AHEAD * THREADS) {
    float numbers[AHEAD];
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int at = k + v * THREADS, row = at / SEEN, d = at % SEEN;
      bool there = at < ALL && d < D;
      uint place = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S) * (uint)D + (uint)d;
      float x = (float)observations[there ? place : 0];
      numbers[v] = there ? x : 0.0f;
    }
#pragma unroll
    for (int v = 0; v < AHEAD; ++v) {
      int at = k + v * THREADS;
      if (at < ALL) seen.put((uint)(at / SEEN), (uint)(at % SEEN), numbers[v]);
    }
  }
}

// A weight's gradient (ROWS, COLUMNS) over M rows: each 32 threads have (16 R, 8 C) of it, or nothing.
template <int EXACT, int M, int ROWS, int COLUMNS, int R, int C, class Left, class Right>
FUNCTION void add_gradient(Left left, Right right, uint me, IN_THREAD float (&sums)[R][C][4]) {
  constexpr uint ACROSS = COLUMNS / 8 / C, ITEMS = ROWS / 16 / R * ACROSS;
  uint item = me / 32, row = item / ACROSS * 16 * R;
  if (item < ITEMS) add_product<EXACT, M, R, C, 8>(left, row, right, item % ACROSS * 8 * C, me, sums);
}

// Those of its numbers that are there, (rows, columns), to memory.
template <int ROWS, int COLUMNS, int R, int C>
FUNCTION void store_gradient(IN_DEVICE float* to, uint rows, uint columns, uint me, IN_THREAD const float (&sums)[R][C][4]) {
  constexpr uint ACROSS = COLUMNS / 8 / C, ITEMS = ROWS / 16 / R * ACROSS;
  uint item = me / 32;
  if (item >= ITEMS) return;
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        uint row = (item / ACROSS * R + (uint)i) * 16 + row_of(v, me), column = (item % ACROSS * C + (uint)j) * 8 + column_of(v, me);
        if (row < rows && column < columns) to[row * columns + column] = sums[i][j][v];
      }
}
