// Muon with the clip by the global norm, for all tensors of a network. Equations and source: __init__.py.
//
// Tensors are packed into flat arrays, each tensor at a multiple of 1024. weights_before, gradients and momenta may be one array.
// squares: sums of squares of the gradients. x: the matrices to orthogonalise, in the layout of the tensors: (r, c) with r <= c. A tall
// matrix is stored as (c, r), and its transpose is orthogonalised. x is undefined between tensors. Low: type of the factors of products.
//
// Launches: muon_by_block with one block per tensor; muon_by_cluster with a cluster of blocks per tensor; or, for tensors of any
// size, muon_momentum, then muon_product three times for each line of coefficients, then muon_apply.
//
// tensors (n, 8): the fields of `Tensor`. flat: number of blocks of 1024 elements; offsets of gradients, momenta and squares in their
// arrays; number of sums of squares per block.

#pragma once

#include "../step.metal.h"
#include "gpu/matrix.metal.h"
#include "tiles.metal.h"

struct Tensor {
  int start, size;
  int r, c;  // dimensions of the tensor's matrix, r <= c; 0 for a 1-d tensor
  bool tall;  // true if the matrix is stored as (c, r)
  int gram;  // offset of the tensor's matrices (r, r) in gram and poly
};

FUNCTION void read_tensor(IN_DEVICE const int* tensors, int t, IN_THREAD Tensor& tensor) {
  uint at = 8 * (uint)t;
  tensor.start = tensors[at];
  tensor.size = tensors[at + 1];
  tensor.r = tensors[at + 2];
  tensor.c = tensors[at + 3];
  tensor.tall = tensors[at + 4] > 0;
  tensor.gram = tensors[at + 5];
}

// Store the new momentum of a tensor's element k in Muon's step. Returns element k of the update to orthogonalise.
FUNCTION float momentum_of(IN_THREAD const Tensor& tensor, int k, IN_THREAD const Clip& clip, float beta,
                           IN_DEVICE const float* gradients, IN_DEVICE const float* momenta, IN_DEVICE float* momentum) {
  int e = tensor.start + k;
  float before = momenta[e], m = before, u = nesterov(clip.scale, gradients[e], beta, m);
  momentum[e] = clip.ok ? m : before;
  return u;
}

// Return the weight w after Muon's update u, with weight decay. Updates of matrices are scaled as in PufferLib.
FUNCTION float moved(float w, float u, IN_THREAD const Tensor& tensor, float lr, float decay) {
  float scale = tensor.tall ? muon_scale((float)tensor.c, (float)tensor.r) : 1.0f;
  return w * (1.0f - lr * decay) - lr * (scale * u);
}

// Compute the tile (64, 64) at row `first` and column `second` of one product of a tensor:
//   what 0: out = gram = x x^T
//   what 1: out = poly = b gram + c gram gram, with square = gram
//   what 2: out = a x + poly x, with square = poly
// gram and poly are symmetric, so tiles above the diagonal are copies. x is multiplied by `factor` in these products.
template <int EXACT, class Low>
FUNCTION void product_tile(int what, IN_THREAD const Tensor& tensor, IN_THREAD const Quintic& by, float factor,
                           IN_DEVICE const Low* square, IN_DEVICE const Low* x, IN_DEVICE Low* out, int first, int second,
                           IN_SHARED Rows<4>* lefts, IN_SHARED Rows<4>* rights, uint me) {
  int r = tensor.r, c = tensor.c;
  Stored<Low> matrix = {x + tensor.start, tensor.tall ? c : r, tensor.tall ? r : c}, factors = {square + tensor.gram, r, r};
  float sums[2][2][4];
  clear(sums);
  if (what == 0 && tensor.tall) {
    multiply_tile<EXACT, 1, 0>(matrix, matrix, c, first, second, lefts, rights, me, sums);
  } else if (what == 2 && !tensor.tall) {
    multiply_tile<EXACT, 0, 0>(factors, matrix, r, first, second, lefts, rights, me, sums);
  } else {
    bool one = what == 1, other = what != 0;
    Stored<Low> left = {one ? factors.numbers : matrix.numbers, one ? r : matrix.rows, one ? r : matrix.columns};
    Stored<Low> right = {other ? factors.numbers : matrix.numbers, other ? r : matrix.rows, other ? r : matrix.columns};
    multiply_tile<EXACT, 0, 1>(left, right, other ? r : c, first, second, lefts, rights, me, sums);
  }

  int rows = what == 2 ? matrix.rows : r, columns = what == 2 ? matrix.columns : r, to = what == 2 ? tensor.start : tensor.gram;
#pragma unroll
  for (int v = 0; v < 16; ++v) {
    int p = first + (int)(me / 32 % 2 * 32 + v / 8 * 16 + row_of(v % 4, me));
    int q = second + (int)(me / 64 * 16 + v / 4 % 2 * 8 + column_of(v % 4, me));
    if (p < rows && q < columns) {
      float y = sums[v / 8][v / 4 % 2][v % 4];
      if (what == 0) y = factor * factor * y;
      if (what == 1) y = by.b * (float)factors.numbers[p * r + q] + by.c * y;
      if (what == 2) y = factor * (by.a * (float)matrix.numbers[p * columns + q] + y);
      out[to + p * columns + q] = (Low)y;
      if (what != 2 && first != second) out[to + q * columns + p] = (Low)y;
    }
  }
}

// ---- one launch per step -------------------------------------------------------------------------------------------

// CLUSTER blocks per tensor, which exchange data through device memory. x alternates between `even` and `odd`.
KERNEL muon_by_cluster<Low, EXACT, CLUSTER>:
  int tensors flat{blocks gradients momenta squares sums}, float weights_before gradients momenta squares settings{beta decay max_norm}
  coefficients loss lr
  -> float weights momentum sums ok, Low even odd gram poly {
  SHARED float part[256];
  SHARED Rows<4> lefts[512];
  SHARED Rows<4> rights[512];
  int mine = (int)block % CLUSTER, first = mine * 256 + (int)me, apart = CLUSTER * 256;
  Tensor tensor;
  read_tensor(tensors, (int)block / CLUSTER, tensor);
  int start = tensor.start, size = tensor.size;
  Clip clip = clip_of(squares + flat.squares, (uint)flat.blocks, loss[0], settings.max_norm, part, me, 256, (uint)flat.sums);
  if (block == 0 && me == 0) ok[0] = clip.ok ? 1.0f : 0.0f;

  float sum = 0.0f;
  for (int k = first; k < size; k += apart) {
    float u = momentum_of(tensor, k, clip, settings.beta, gradients + flat.gradients, momenta + flat.momenta, momentum);
    if (tensor.r > 0)
      even[start + k] = (Low)u;
    else
      weights[start + k] = clip.ok ? moved(weights_before[start + k], u, tensor, lr[0], settings.decay) : weights_before[start + k];
    sum += u * u;
  }
  sum = block_sum(sum, part, me, 256);
  if (me == 0) sums[block] = sum;
  CLUSTER_BARRIER(CLUSTER)
  sum = 0.0f;
  for (int k = 0; k < CLUSTER; ++k) sum += sums[(int)block - mine + k];
  float factor = one_over_norm(sqrt(sum));

  int lines = clip.ok && tensor.r > 0 ? 5 : 0, tiles = (tensor.r + 63) / 64, wide = (tensor.c + 63) / 64;
  IN_DEVICE Low* x = even;
  IN_DEVICE Low* next = odd;
  for (int line = 0; line < lines; ++line) {
    Quintic by = {coefficients[3 * line], coefficients[3 * line + 1], coefficients[3 * line + 2]};
    for (int what = 0; what < 2; ++what) {
      for (int n = 0, row = 0; row < tiles; ++row)
        for (int column = 0; column <= row; ++column, ++n)
          if (n % CLUSTER == mine)
            product_tile<EXACT>(what, tensor, by, factor, gram, x, what == 0 ? gram : poly, 64 * row, 64 * column, lefts,
                                rights, me);
      CLUSTER_BARRIER(CLUSTER)
    }
    for (int n = mine; n < tiles * wide; n += CLUSTER) {
      int along = 64 * (n / tiles), across = 64 * (n % tiles);
      product_tile<EXACT>(2, tensor, by, factor, poly, x, next, tensor.tall ? along : across, tensor.tall ? across : along,
                          lefts, rights, me);
    }
    IN_DEVICE Low* before = x;
    x = next, next = before, factor = 1.0f;
    CLUSTER_BARRIER(CLUSTER)
  }

  for (int k = first; tensor.r > 0 && k < size; k += apart) {
    float w = weights_before[start + k];
    weights[start + k] = clip.ok ? moved(w, (float)x[start + k], tensor, lr[0], settings.decay) : w;
  }
  for (int k = size + first; k < (size + 1023) / 1024 * 1024; k += apart) {
    weights[start + k] = 0.0f;
    momentum[start + k] = 0.0f;
  }
}

// One block of 512 threads per tensor. Shared memory contains x (64, COLUMNS), transposed if tall, gram and poly. A warp (32 threads)
// computes a tile (16, 16) of each 64 columns of a product.
KERNEL muon_by_block<COLUMNS, THREADS, POOL, EXACT>:
  int tensors flat{blocks gradients momenta squares sums}, float weights_before gradients momenta squares settings{beta decay max_norm}
  coefficients loss lr
  -> float weights momentum ok {
  constexpr int PARTS = COLUMNS / 64;
  static_assert(THREADS == 512 && 64 * COLUMNS + 2 * 64 * 64 + THREADS <= POOL, "a block's memory is too small");
  SHARED_POOL(pool, POOL)
  IN_SHARED float* part = pool + 64 * COLUMNS + 2 * 64 * 64;
  Swizzled<float, COLUMNS> x = {pool};
  Swizzled<float, 64> gram = {pool + 64 * COLUMNS}, poly = {pool + 64 * COLUMNS + 64 * 64};
  Tensor tensor;
  read_tensor(tensors, (int)block, tensor);
  int start = tensor.start, size = tensor.size, c = tensor.c;
  bool matrix = tensor.r > 0;
  Clip clip = clip_of(squares + flat.squares, (uint)flat.blocks, loss[0], settings.max_norm, part, me, THREADS, (uint)flat.sums);
  if (block == 0 && me == 0) ok[0] = clip.ok ? 1.0f : 0.0f;

  for (uint k = me; k < 64 * COLUMNS; k += THREADS) pool[k] = 0.0f;
  BARRIER
  float sum = 0.0f, lr_ = lr[0], decay = settings.decay;
#pragma unroll 8
  for (int k = (int)me; k < size; k += THREADS) {
    float u = momentum_of(tensor, k, clip, settings.beta, gradients + flat.gradients, momenta + flat.momenta, momentum);
    if (matrix)
      x.put((uint)(tensor.tall ? k % tensor.r : k / c), (uint)(tensor.tall ? k / tensor.r : k % c), u);
    else
      weights[start + k] = clip.ok ? moved(weights_before[start + k], u, tensor, lr_, decay) : weights_before[start + k];
    sum += u * u;
  }
  float factor = one_over_norm(sqrt(block_sum(sum, part, me, THREADS)));
  for (uint k = me; k < 64 * COLUMNS; k += THREADS) pool[k] *= factor;
  BARRIER

  uint row = me / 128 * 16, column = me / 32 % 4 * 16;
  int lines = clip.ok && matrix ? 5 : 0;
  for (int line = 0; line < lines; ++line) {
    float a = coefficients[3 * line], b = coefficients[3 * line + 1], cubic = coefficients[3 * line + 2];
    float square[1][2][4] = {}, next[PARTS][1][2][4] = {};
    for (int p = 0; p < PARTS && 64 * p < c; ++p) {
      Swizzled<float, COLUMNS> some = {pool + 64 * p};
      add_product<EXACT, 64, 1, 2, 8>(some, row, Transposed<Swizzled<float, COLUMNS>>{some}, column, me, square);
    }
#pragma unroll
    for (int v = 0; v < 8; ++v) gram.put(row + row_of(v % 4, me), column + v / 4 * 8 + column_of(v % 4, me), square[0][v / 4][v % 4]);
    BARRIER
#pragma unroll
    for (int v = 0; v < 8; ++v) square[0][v / 4][v % 4] = 0.0f;
    add_product<EXACT, 64, 1, 2, 8>(gram, row, gram, column, me, square);
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      uint p = row + row_of(v % 4, me), j = column + v / 4 * 8 + column_of(v % 4, me);
      poly.put(p, j, b * gram.at(p, j) + cubic * square[0][v / 4][v % 4]);
    }
    BARRIER
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
      if (64 * p < c) add_product<EXACT, 64, 1, 2, 8>(poly, row, Swizzled<float, COLUMNS>{pool + 64 * p}, column, me, next[p]);
    BARRIER
#pragma unroll
    for (int v = 0; v < 8 * PARTS; ++v) {
      uint p = row + row_of(v % 4, me), j = v / 8 * 64 + column + v / 4 % 2 * 8 + column_of(v % 4, me);
      if (v / 8 * 64 < c) x.put(p, j, a * x.at(p, j) + next[v / 8][0][v / 4 % 2][v % 4]);
    }
    BARRIER
  }

#pragma unroll 8
  for (int k = (int)me; matrix && k < size; k += THREADS) {
    float w = weights_before[start + k], u = x.at((uint)(tensor.tall ? k % tensor.r : k / c), (uint)(tensor.tall ? k / tensor.r : k % c));
    weights[start + k] = clip.ok ? moved(w, u, tensor, lr_, decay) : w;
  }
  for (int k = size + (int)me; k < (size + 1023) / 1024 * 1024; k += THREADS) {
    weights[start + k] = 0.0f;
    momentum[start + k] = 0.0f;
  }
}

// ---- all tensors in each launch -------------------------------------------------------------------------------------

// Update the momentum. owners: the tensor of each block of 1024 elements. u: updates of 1-d tensors. x: updates to orthogonalise.
KERNEL muon_momentum<Low>:
  int tensors owners flat{blocks gradients momenta squares sums}, float gradients momenta squares settings{beta decay max_norm} loss
  -> float momentum u sums ok, Low x {
  SHARED float part[256];
  Tensor tensor;
  read_tensor(tensors, owners[block], tensor);
  Clip clip = clip_of(squares + flat.squares, (uint)flat.blocks, loss[0], settings.max_norm, part, me, 256, (uint)flat.sums);
  if (block == 0 && me == 0) ok[0] = clip.ok ? 1.0f : 0.0f;

  float sum = 0.0f;
  for (int n = 0; n < 4; ++n) {
    int e = (int)(block * 1024 + n * 256 + me), k = e - tensor.start;
    if (k < tensor.size) {
      float by = momentum_of(tensor, k, clip, settings.beta, gradients + flat.gradients, momenta + flat.momenta, momentum);
      if (tensor.r > 0)
        x[e] = (Low)by;
      else
        u[e] = by;
      sum += by * by;
    } else {
      momentum[e] = 0.0f;
    }
  }
  sum = block_sum(sum, part, me, 256);
  if (me == 0) sums[block] = sum;
}

// Compute one product of all tensors, one tile per block. tiles: tensor, first row and first column of each tile. now: the line of
// coefficients, and which product (see product_tile). The first line divides x by its norm. sums: sums of squares of x.
KERNEL muon_product<Low, EXACT, THREADS, RESIDENT>: int tensors tiles now{line what}, float coefficients sums, Low square x -> Low out {
  SHARED float part[256];
  SHARED Rows<4> lefts[512];
  SHARED Rows<4> rights[512];
  Tensor tensor;
  read_tensor(tensors, tiles[3 * block], tensor);
  int line = now.line, what = now.what;
  Quintic by = {coefficients[3 * line], coefficients[3 * line + 1], coefficients[3 * line + 2]};
  float factor = 1.0f;
  if (line == 0 && what != 1) {
    float sum = 0.0f;
    for (int k = (int)me; k < (tensor.size + 1023) / 1024; k += 256) sum += sums[tensor.start / 1024 + k];
    factor = one_over_norm(sqrt(block_sum(sum, part, me, 256)));
  }
  int first = tiles[3 * block + 1], second = tiles[3 * block + 2];
  product_tile<EXACT>(what, tensor, by, factor, square, x, out, first, second, lefts, rights, me);
}

// Update the weights by x (matrices) or u (1-d tensors).
KERNEL muon_apply<Low>: int tensors owners, float weights_before u settings{beta decay max_norm} lr ok, Low x -> float weights {
  Tensor tensor;
  read_tensor(tensors, owners[block], tensor);
  for (int n = 0; n < 4; ++n) {
    int e = (int)(block * 1024 + n * 256 + me), k = e - tensor.start;
    float w = weights_before[e];
    if (k < tensor.size && ok[0] > 0.0f) {
      float by = tensor.r > 0 ? (float)x[e] : u[e];
      w = moved(w, by, tensor, lr[0], settings.decay);
    }
    weights[e] = w;
  }
}
