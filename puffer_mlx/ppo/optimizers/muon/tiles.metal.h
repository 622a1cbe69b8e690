// Products of matrices in tiles: a block of 256 threads makes (64, 64) of the result, 32 of them (16, 32) each.
//
// What is multiplied lies in shared memory, the inner dimension last, 32 of it at a time. The order in which threads fill
// it keeps most of them in different banks. While a tile is multiplied, the next one is under way to the threads' registers.

#pragma once

#include "gpu/matrix.metal.h"

#define TILE_ROW 36  // numbers from one row of a tile in shared memory to the next

// Of the v-th number that a thread has of a tile: its place in the inner dimension, and in the outer one. The tile is read
// from rows in memory either along the inner dimension or along the outer one: neighbouring threads read what lies side
// by side.
FUNCTION int inner_of(int v, uint me, bool along_inner) {
  int e = v * 256 + (int)me;
  return along_inner ? e % 8 + e / 512 * 8 : e / 8 % 4 + e / 256 * 4;
}

FUNCTION int outer_of(int v, uint me, bool along_inner) {
  int e = v * 256 + (int)me;
  return along_inner ? e / 8 % 64 : e % 8 + e / 32 % 8 * 8;
}

// The numbers of the tile at (inner, outer) of a matrix (inners, outers), or of its transposed; zeros beyond it.
FUNCTION void fetch(IN_DEVICE const float* matrix, int inners, int outers, int inner, int outer, bool along_inner,
                    float factor, uint me, IN_THREAD float (&fetched)[8]) {
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    int k = inner + inner_of(v, me, along_inner), n = outer + outer_of(v, me, along_inner);
    fetched[v] = 0.0f;
    if (k < inners && n < outers) fetched[v] = factor * matrix[along_inner ? n * inners + k : k * outers + n];
  }
}

FUNCTION void put(IN_SHARED float* tile, IN_THREAD const float (&fetched)[8], bool along_inner, uint me) {
#pragma unroll
  for (int v = 0; v < 8; ++v) tile[outer_of(v, me, along_inner) * TILE_ROW + inner_of(v, me, along_inner)] = fetched[v];
}
