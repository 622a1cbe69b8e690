// Products by a GPU's matrix units: 32 neighbouring threads multiply tiles of 8 x 8 numbers together.
//
// What is multiplied lies in shared memory; rows 36 numbers apart (or 4 more than a multiple of 32) keep the threads in
// different banks. Of a tile of the result a thread has two numbers, side by side: at (matrix_row, matrix_column). On CUDA
// each factor is split into two numbers of TF32, three of whose four products are summed: the result is as exact as
// float32's own sums. Metal's units take float32. Without such units (before Ampere) threads multiply one by one.

#pragma once

#include "gpu/functions.metal.h"

#ifdef __METAL_VERSION__
#include <metal_simdgroup_matrix>
FUNCTION uint matrix_row(uint me) { return me % 32 / 16 * 4 + me % 8 / 2; }
FUNCTION uint matrix_column(uint me) { return me % 16 / 8 * 4 + me % 2 * 2; }
#else
FUNCTION uint matrix_row(uint me) { return me % 32 / 4; }
FUNCTION uint matrix_column(uint me) { return me % 4 * 2; }
#endif

#if __CUDA_ARCH__ >= 800
// A float32 as the sum of two numbers of TF32, but for its last bit or two.
FUNCTION void split(float x, unsigned int& high, unsigned int& low) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(x - __uint_as_float(high)));
}

// Two tiles, one below the other: += (16, 8) times (8, 8).
FUNCTION void add_tiles(const unsigned int (&a)[4], const unsigned int (&b)[2], float (&upper)[2], float (&lower)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// sums += left times the transposed of right, (8 R, inner) and (8 C, inner) with rows that far apart. R is even, inner a
// multiple of 8. All 32 threads call this.
template <int R, int C>
FUNCTION void add_product(IN_SHARED const float* left, uint left_row, IN_SHARED const float* right, uint right_row,
                          uint inner, uint me, IN_THREAD float (&sums)[R][C][2]) {
#if defined(__METAL_VERSION__)
  (void)me;
  simdgroup_float8x8 results[R][C];
  for (uint i = 0; i < R; ++i)
    for (uint j = 0; j < C; ++j) {
      results[i][j].thread_elements()[0] = sums[i][j][0];
      results[i][j].thread_elements()[1] = sums[i][j][1];
    }
  for (uint k = 0; k < inner; k += 8) {
    simdgroup_float8x8 a[R];
    for (uint i = 0; i < R; ++i) simdgroup_load(a[i], left + 8 * i * left_row + k, left_row);
    for (uint j = 0; j < C; ++j) {
      simdgroup_float8x8 b;
      simdgroup_load(b, right + 8 * j * right_row + k, right_row, ulong2(0), true);
      for (uint i = 0; i < R; ++i) simdgroup_multiply_accumulate(results[i][j], a[i], b, results[i][j]);
    }
  }
  for (uint i = 0; i < R; ++i)
    for (uint j = 0; j < C; ++j) {
      sums[i][j][0] = results[i][j].thread_elements()[0];
      sums[i][j][1] = results[i][j].thread_elements()[1];
    }
#elif __CUDA_ARCH__ >= 800
  uint row = me % 32 / 4, column = me % 4;
  left += row * left_row + column;
  right += row * right_row + column;
  for (uint k = 0; k < inner; k += 8) {
    unsigned int high[C][2], low[C][2];
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 2; ++v) split(right[8 * j * right_row + k + 4 * v], high[j][v], low[j][v]);
#pragma unroll
    for (int i = 0; i < R; i += 2) {
      unsigned int a[4], rest[4];
#pragma unroll
      for (int v = 0; v < 4; ++v) split(left[8 * (i + v % 2) * left_row + k + v / 2 * 4], a[v], rest[v]);
#pragma unroll
      for (int j = 0; j < C; ++j) {
        add_tiles(rest, high[j], sums[i][j], sums[i + 1][j]);
        add_tiles(a, low[j], sums[i][j], sums[i + 1][j]);
        add_tiles(a, high[j], sums[i][j], sums[i + 1][j]);
      }
    }
  }
#else
  for (uint k = 0; k < inner; ++k)
    for (uint i = 0; i < R; ++i)
      for (uint j = 0; j < C; ++j)
        for (uint v = 0; v < 2; ++v)
          sums[i][j][v] += left[(8 * i + matrix_row(me)) * left_row + k] *
                           right[(8 * j + matrix_column(me) + v) * right_row + k];
#endif
}
