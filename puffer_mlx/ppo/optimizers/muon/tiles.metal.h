// Products of matrices in device memory on matrix units. A block of 256 threads computes a tile (64, 64) of the result, and a warp
// (32, 16) of the tile. Shared memory contains STEP elements of the inner dimension. While these are multiplied, threads load the next
// STEP elements into registers.

#pragma once

#include "gpu/matrix.metal.h"

template <class Low>
struct Stored {
  IN_DEVICE const Low* numbers;
  int rows, columns;
};

// Load two lines per thread of a matrix's 8 kB tile at (first, second) with COLUMNS elements per row. Elements outside the matrix are 0.
template <int COLUMNS, class Low>
FUNCTION void fetch(IN_THREAD const Stored<Low>& matrix, int first, int second, uint me, IN_THREAD Line<Low> (&lines)[2]) {
  const int WIDTH = 16 / sizeof(Low), LINES = COLUMNS / WIDTH;  // elements per line, lines per row
  bool whole = matrix.columns % WIDTH == 0;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    int k = v * 256 + (int)me, row = first + k / LINES, column = second + k % LINES * WIDTH;
    bool in = row < matrix.rows && column < matrix.columns;
    IN_DEVICE const Low* from = matrix.numbers + (in ? row * matrix.columns + column : 0);
    if (in && whole) {
      lines[v] = *(IN_DEVICE const Line<Low>*)(IN_DEVICE const void*)from;
    } else {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) lines[v].of[w] = (Low)(in && column + w < matrix.columns ? (float)from[w] : 0.0f);
    }
  }
}

// Write the lines of a matrix's tile that `fetch` has loaded into registers to shared memory.
template <int COLUMNS, class Low>
FUNCTION void put(IN_THREAD const Line<Low> (&lines)[2], Swizzled<Low, COLUMNS> tile, uint me) {
  const int WIDTH = 16 / sizeof(Low), LINES = COLUMNS / WIDTH;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    uint k = (uint)v * 256 + me;
    IN_SHARED void* to = tile.numbers + tile.place(k / LINES, k % LINES * WIDTH);
    *(IN_SHARED Line<Low>*)to = lines[v];
  }
}

// Multiply two matrices: add the tile at row `first` and column `second` of the product left times right to `sums`. inners: inner
// dimension of the product. LEFT and RIGHT: 1 if this factor is stored transposed. lefts, rights: buffers in shared memory.
template <int EXACT, int LEFT, int RIGHT, class Low>
FUNCTION void multiply_tile(IN_THREAD const Stored<Low>& left, IN_THREAD const Stored<Low>& right, int inners, int first,
                            int second, IN_SHARED Rows<4>* lefts, IN_SHARED Rows<4>* rights, uint me,
                            IN_THREAD float (&sums)[2][2][4]) {
  constexpr int STEP = 128 / sizeof(Low), A = LEFT ? 64 : STEP, B = RIGHT ? STEP : 64;
  Line<Low> one[2], other[2];
  Swizzled<Low, A> a = {(IN_SHARED Low*)lefts};
  Swizzled<Low, B> b = {(IN_SHARED Low*)rights};
  uint row = me / 32 % 2 * 32, column = me / 64 * 16;
  fetch<A>(left, LEFT ? 0 : first, LEFT ? first : 0, me, one);
  fetch<B>(right, RIGHT ? second : 0, RIGHT ? 0 : second, me, other);
  for (int k = 0; k < inners; k += STEP) {
    BARRIER
    put(one, a, me);
    put(other, b, me);
    BARRIER
    int next = k + STEP;
    if (next < inners) {
      fetch<A>(left, LEFT ? next : first, LEFT ? first : next, me, one);
      fetch<B>(right, RIGHT ? second : next, RIGHT ? next : second, me, other);
    }
    add_product<EXACT, STEP, 2, 2, 8>(Either<LEFT>::of(transposed(a), a), row, Either<RIGHT>::of(transposed(b), b), column, me,
                                      sums);
  }
}
