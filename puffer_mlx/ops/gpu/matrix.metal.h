// Matrix products with a GPU's matrix units. 32 adjacent threads multiply tiles together.
//
// A thread holds four numbers of a (16, 8) result tile: two adjacent ones at (matrix_row, matrix_column), and the two 8 rows below. A
// factor is any type with at(row, column). On CUDA, factors are rounded to TF32; if EXACT, each factor is split into two TF32 numbers
// and three of the four products are summed, which is as exact as float32 sums. Two 16-bit factors are multiplied as bfloat16. The
// units of Metal use float32. GPUs before Ampere multiply without matrix units.

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

// The array of layer l, for example layer2; l is a compile-time constant from 0 to 3.
#define OF_LAYER(name, l) ((l) == 0 ? name##0 : (l) == 1 ? name##1 : (l) == 2 ? name##2 : name##3)

// Two adjacent numbers; the first has an even index. To: pointer type in any address space.
template <class Low>
struct alignas(2 * sizeof(Low)) Pair { Low of[2]; };
template <class Low, class To>
FUNCTION void put_pair(To to, float x, float y) {
#if __CUDA_ARCH__ >= 800
  Pair<Low> pair;
  pair.of[0] = (Low)x, pair.of[1] = (Low)y;
  *(Pair<Low>*)(void*)to = pair;
#else
  to[0] = (Low)x, to[1] = (Low)y;
#endif
}

// Read or write one or two adjacent numbers of a 16-bit matrix; the first is in an even column.
template <class Matrix>
FUNCTION void get_some(Matrix matrix, uint row, uint column, IN_THREAD float (&x)[1]) { x[0] = matrix.at(row, column); }
template <class Matrix>
FUNCTION void get_some(Matrix matrix, uint row, uint column, IN_THREAD float (&x)[2]) {
#if __CUDA_ARCH__ >= 800
  Pair<typename Matrix::Number> pair;
  pair = *(const Pair<typename Matrix::Number>*)(const void*)(matrix.numbers + matrix.place(row, column));
  x[0] = (float)pair.of[0], x[1] = (float)pair.of[1];
#else
  x[0] = matrix.at(row, column), x[1] = matrix.at(row, column + 1);
#endif
}
template <class Matrix>
FUNCTION void put_some(Matrix matrix, uint row, uint column, IN_THREAD const float (&x)[1]) { matrix.put(row, column, x[0]); }
template <class Matrix>
FUNCTION void put_some(Matrix matrix, uint row, uint column, IN_THREAD const float (&x)[2]) {
#if __CUDA_ARCH__ >= 800
  put_pair<typename Matrix::Number>(matrix.numbers + matrix.place(row, column), x[0], x[1]);
#else
  matrix.put(row, column, x[0]), matrix.put(row, column + 1, x[1]);
#endif
}

// A matrix in shared memory with rows of ROW numbers, 32-bit or 16-bit; ROW is a multiple of 32. Columns are permuted in each row, so
// that reading a tile by rows or columns causes no bank conflicts; groups of eight 16-bit numbers stay together. If ROWS > 0, a power
// of 2, row indices wrap around.
template <class Low, int ROW, int ROWS = 0>
struct Swizzled {
  IN_SHARED Low* numbers;

  using Number = Low;
  static constexpr int LOW = sizeof(Low) == 2 ? 1 : 0;
  FUNCTION uint place(uint row, uint column) const {
    if (ROWS > 0) row %= (uint)ROWS;
    uint by = LOW ? (ROW % 64 ? row / 2 % 4 : row % 8) * 8 : (row % 4 * 8 + row / 4 % 2 * 4);
    return row * (uint)ROW + (column ^ by);
  }
  FUNCTION float at(uint row, uint column) const { return (float)numbers[place(row, column)]; }
  FUNCTION void put(uint row, uint column, float x) const { numbers[place(row, column)] = (Low)x; }
  FUNCTION float rounded(float x) const { return (float)(Low)x; }
};

// A matrix in shared memory with few columns and rows ROW numbers apart, without permutation.
template <int ROW>
struct Apart {
  IN_SHARED float* numbers;

  static constexpr int LOW = 0;
  FUNCTION float at(uint row, uint column) const { return numbers[row * (uint)ROW + column]; }
  FUNCTION void put(uint row, uint column, float x) const { numbers[row * (uint)ROW + column] = x; }
};

// A matrix in device memory with rows ROW numbers apart; elements beyond `rows` and `columns` are 0.
template <int ROW>
struct Padded {
  IN_DEVICE const float* numbers;
  uint rows, columns;

  static constexpr int LOW = 0;
  FUNCTION float at(uint row, uint column) const {
    return row < rows && column < columns ? numbers[row * (uint)ROW + column] : 0.0f;
  }
};

template <class Matrix>
struct Transposed {
  Matrix matrix;

  static constexpr int LOW = Matrix::LOW;
  FUNCTION float at(uint row, uint column) const { return matrix.at(column, row); }
};

template <class Matrix>
FUNCTION Transposed<Matrix> transposed(Matrix matrix) { return {matrix}; }

// Select one of two matrices of different types at compile time.
template <int FIRST>
struct Either {
  template <class One, class Other>
  FUNCTION static One of(One one, Other) { return one; }
};
template <> struct Either<0> {
  template <class One, class Other>
  FUNCTION static Other of(One, Other other) { return other; }
};

#if __CUDA_ARCH__ >= 800
// Round to TF32. Matrix units ignore the last 13 bits. Infinity becomes NaN.
FUNCTION unsigned int to_tf32(float x) { return __float_as_uint(x) + 0x1000u; }

FUNCTION void add_tile(const unsigned int (&a)[4], const unsigned int (&b)[2], float (&sum)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Add the product of two bfloat16 tiles, with inner dimension 16.
FUNCTION void add_low_tile(const unsigned int (&a)[4], const unsigned int (&b)[2], float (&sum)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Load four or two tiles of 8 x 8 16-bit numbers, optionally transposed. Each group of 8 threads passes the rows of one tile.
template <int TRANSPOSED>
FUNCTION void load_tiles(const void* row, unsigned int (&tiles)[4]) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(row);
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3]) : "r"(at) : "memory");
}

template <int TRANSPOSED>
FUNCTION void load_tiles(const void* row, unsigned int (&tiles)[2]) {
  unsigned int at = (unsigned int)__cvta_generic_to_shared(row);
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(tiles[0]), "=r"(tiles[1]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(tiles[0]), "=r"(tiles[1]) : "r"(at) : "memory");
}

// Load the operands of add_low_tile: left (16, 16) at (row, k), right (16, 8) at (k, column).
template <class Low, int ROW>
FUNCTION void load_left(Swizzled<Low, ROW> matrix, uint row, uint k, uint me, unsigned int (&a)[4]) {
  load_tiles<0>(matrix.numbers + matrix.place(row + me % 16, k + me % 32 / 16 * 8), a);
}

template <class Low, int ROW>
FUNCTION void load_left(Transposed<Swizzled<Low, ROW>> left, uint row, uint k, uint me, unsigned int (&a)[4]) {
  load_tiles<1>(left.matrix.numbers + left.matrix.place(k + me % 8 + me % 32 / 16 * 8, row + me / 8 % 2 * 8), a);
}

template <class Low, int ROW>
FUNCTION void load_right(Swizzled<Low, ROW> matrix, uint k, uint column, uint me, unsigned int (&b)[2]) {
  load_tiles<1>(matrix.numbers + matrix.place(k + me % 16, column), b);
}

template <class Low, int ROW, int ROWS>
FUNCTION void load_right(Transposed<Swizzled<Low, ROW, ROWS>> right, uint k, uint column, uint me, unsigned int (&b)[2]) {
  load_tiles<0>(right.matrix.numbers + right.matrix.place(column + me % 8, k + me / 8 % 2 * 8), b);
}
#endif

// Compute sums += left * right for R x C result tiles from (row, column) on; adjacent tiles are APART columns apart. INNERS: inner
// dimension, a multiple of 8, or of 16 if both factors are 16-bit. All 32 threads must call this.
template <int EXACT, int INNERS, int R, int C, int APART, class Left, class Right>
FUNCTION void add_product(Left left, uint row, Right right, uint column, uint me, IN_THREAD float (&sums)[R][C][4]) {
#if defined(__METAL_VERSION__)
  uint down = matrix_row(me), across = matrix_column(me);
  simdgroup_float8x8 results[R][C][2];
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < C; ++j)
      for (int v = 0; v < 4; ++v) results[i][j][v / 2].thread_elements()[v % 2] = sums[i][j][v];
  for (uint k = 0; k < (uint)INNERS; k += 8) {
    simdgroup_float8x8 a[R][2];
    for (int i = 0; i < R; ++i)
      for (int v = 0; v < 4; ++v)
        a[i][v / 2].thread_elements()[v % 2] = left.at(row + 16 * i + v / 2 * 8 + down, k + across + v % 2);
    for (int j = 0; j < C; ++j) {
      simdgroup_float8x8 b;
      for (int v = 0; v < 2; ++v) b.thread_elements()[v] = right.at(k + down, column + APART * j + across + v);
      for (int i = 0; i < R; ++i)
        for (int v = 0; v < 2; ++v) simdgroup_multiply_accumulate(results[i][j][v], a[i][v], b, results[i][j][v]);
    }
  }
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < C; ++j)
      for (int v = 0; v < 4; ++v) sums[i][j][v] = results[i][j][v / 2].thread_elements()[v % 2];
#elif __CUDA_ARCH__ >= 800
  if constexpr (Left::LOW && Right::LOW) {
#pragma unroll
    for (uint k = 0; k < (uint)INNERS; k += 16) {
      unsigned int b[C][2];
#pragma unroll
      for (int j = 0; j < C; ++j) load_right(right, k, column + APART * (uint)j, me, b[j]);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        unsigned int a[4];
        load_left(left, row + 16 * (uint)i, k, me, a);
#pragma unroll
        for (int j = 0; j < C; ++j) add_low_tile(a, b[j], sums[i][j]);
      }
    }
    return;
  }
  uint down = me % 32 / 4, across = me % 4;
#pragma unroll 4
  for (uint k = 0; k < (uint)INNERS; k += 8) {
    unsigned int b[C][2], of_b[C][2];
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        float x = right.at(k + across + 4 * v, column + APART * j + down);
        b[j][v] = to_tf32(x);
        of_b[j][v] = EXACT ? to_tf32(x - __uint_as_float(b[j][v] & 0xffffe000u)) : 0u;
      }
#pragma unroll
    for (int i = 0; i < R; ++i) {
      unsigned int a[4], of_a[4];
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        float x = left.at(row + 16 * i + v % 2 * 8 + down, k + across + v / 2 * 4);
        a[v] = to_tf32(x);
        of_a[v] = EXACT ? to_tf32(x - __uint_as_float(a[v] & 0xffffe000u)) : 0u;
      }
#pragma unroll
      for (int j = 0; j < C; ++j) {
        if (EXACT) {
          add_tile(of_a, b[j], sums[i][j]);
          add_tile(a, of_b[j], sums[i][j]);
        }
        add_tile(a, b[j], sums[i][j]);
      }
    }
  }
#else
  for (uint k = 0; k < (uint)INNERS; ++k)
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < C; ++j)
        for (int v = 0; v < 4; ++v)
          sums[i][j][v] += left.at(row + 16 * i + v / 2 * 8 + matrix_row(me), k) *
                           right.at(k, column + APART * j + matrix_column(me) + v % 2);
#endif
}

// Row and column of a thread's v-th number in a tile.
FUNCTION uint row_of(int v, uint me) { return matrix_row(me) + (v / 2 * 8); }
FUNCTION uint column_of(int v, uint me) { return matrix_column(me) + v % 2; }

// ---- lines of a matrix ---------------------------------------------------------------------------------------------

// 16 bytes, the largest load of a thread.
template <class Low>
struct alignas(16) Line { Low of[16 / sizeof(Low)]; };

// Copy 16 bytes from device to shared memory (done after WAIT_FOR_COPIES), or back.
template <class Low>
FUNCTION void copy_line(IN_DEVICE const Low* from, IN_SHARED Low* to) {
#ifdef COPY_LINE
  COPY_LINE(from, to)
#else
  Line<Low> line;
  line = *(IN_DEVICE const Line<Low>*)(IN_DEVICE const void*)from;
  *(IN_SHARED Line<Low>*)(IN_SHARED void*)to = line;
#endif
}

template <class Low>
FUNCTION void write_line(IN_SHARED const Low* from, IN_DEVICE Low* to) {
  Line<Low> line;
  line = *(IN_SHARED const Line<Low>*)(IN_SHARED const void*)from;
  *(IN_DEVICE Line<Low>*)(IN_DEVICE void*)to = line;
}

// ---- products of matrices in shared memory -------------------------------------------------------------------------

template <int R, int C>
FUNCTION void clear(IN_THREAD float (&sums)[R][C][4]) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[i][j][v] = 0.0f;
}

// Compute a product (M, N). 32 threads compute a piece of (16, 8 C) at a time. add: true adds the product to the old values.
template <int EXACT, int INNERS, int M, int N, int C, int THREADS, class Left, class Right, class Result>
FUNCTION void multiply_rows(Left left, Right right, Result to, bool add, uint me) {
  constexpr uint ACROSS = N / 8 / C, ITEMS = M / 16 * ACROSS;
  for (uint item = me / 32; item < ITEMS; item += THREADS / 32) {
    uint row = item / ACROSS * 16, column = item % ACROSS * 8 * C;
    float sums[1][C][4];
    clear(sums);
    add_product<EXACT, INNERS, 1, C, 8>(left, row, right, column, me, sums);
#pragma unroll
    for (int j = 0; j < C; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        uint r = row + row_of(v, me), c = column + 8 * (uint)j + column_of(v, me);
        to.put(r, c, add ? to.at(r, c) + sums[0][j][v] : sums[0][j][v]);
      }
  }
}

// Load a weight (rows, columns) into shared memory, zero-padded to (ROWS, COLUMNS).
template <int ROWS, int COLUMNS, int THREADS, class Weight>
FUNCTION void keep_weight(IN_DEVICE const float* from, uint rows, uint columns, Weight to, uint me) {
  constexpr uint AHEAD = 16;
  for (uint first = me; first < ROWS * COLUMNS; first += AHEAD * THREADS) {
    float numbers[AHEAD];
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint k = first + v * THREADS, row = k / COLUMNS, column = k % COLUMNS;
      bool there = k < ROWS * COLUMNS && row < rows && column < columns;
      float x = from[there ? row * columns + column : 0];
      numbers[v] = there ? x : 0.0f;
    }
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint k = first + v * THREADS;
      if (k < ROWS * COLUMNS) to.put(k / COLUMNS, k % COLUMNS, numbers[v]);
    }
  }
}
