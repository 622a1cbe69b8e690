// Products of matrices in tiles: a block of 256 threads makes (64, 64) of the result, each thread (4, 4).
//
// What is multiplied lies in shared memory with the inner dimension first, 32 of it at a time. Rows of 17 times 4 numbers
// and the order in which threads fill them keep neighbouring threads in different banks. While a tile is multiplied, the
// next one is under way to the threads' registers.

#pragma once

#include "gpu/functions.metal.h"

FUNCTION void clear(IN_THREAD float (&sums)[16]) {
#pragma unroll
  for (int v = 0; v < 16; ++v) sums[v] = 0.0f;
}

// Of the v-th number that a thread has of a tile: its place in the inner dimension, and in the outer one. The tile is read
// from rows in memory either along the inner dimension or along the outer one: neighbouring threads read what lies side
// by side.
FUNCTION int inner_of(int v, uint me, bool along_inner) {
  int e = v * 256 + (int)me;
  return along_inner ? e % 8 + e / 512 * 8 : e / 64;
}

FUNCTION int outer_of(int v, uint me, bool along_inner) {
  int e = v * 256 + (int)me;
  return along_inner ? e / 8 % 64 : e % 64;
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

FUNCTION void put(IN_SHARED Rows<4>* tile, IN_THREAD const float (&fetched)[8], bool along_inner, uint me) {
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    int n = outer_of(v, me, along_inner);
    tile[inner_of(v, me, along_inner) * 17 + n / 4].of[n % 4] = fetched[v];
  }
}

// Sums over `count` rows of two tiles, whose rows are that many groups of 4 apart.
FUNCTION void multiply(IN_SHARED const Rows<4>* left, int left_row, IN_SHARED const Rows<4>* right, int right_row,
                       int count, IN_THREAD float (&sums)[16]) {
#pragma unroll 4
  for (int k = 0; k < count; ++k) {
    Rows<4> a = left[k * left_row], b = right[k * right_row];
#pragma unroll
    for (int v = 0; v < 16; ++v) sums[v] += a.of[v / 4] * b.of[v % 4];
  }
}
