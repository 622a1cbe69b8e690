// Muon with the clip, for all tensors of a network at once: what is computed, __init__.py.
//
// Arrays of all tensors are flat, each tensor at a multiple of 1024. `packed` has all weights, then all gradients, then all
// momenta; `squares` the sums of squares of each 1024 of them. x is what is orthogonalised, with rows no longer than it has
// columns: tensors with more rows than columns are transposed there.
//
// Either a block does all of a tensor (muon_step), or blocks of 1024 numbers, or of tiles, are those of all tensors
// (muon_momentum, then muon_product three times for each line of coefficients, then muon_apply). Between tensors x is
// whatever it is: nobody reads it there.
//
// tensors: numbers of one kind of array, blocks of 1024 of them, and from 8 on of each tensor what `Tensor` has.
// settings: beta, weight decay, the largest norm.

#pragma once

#include "../step.metal.h"
#include "gpu/block_sum.metal.h"
#include "tiles.metal.h"

struct Tensor {
  int start, size;
  int r, c;  // of the matrix in x: r <= c; 0 if there is none
  bool tall;  // the tensor has c rows
  int gram;  // where its (r, r) begin
};

FUNCTION void read_tensor(IN_DEVICE const int* tensors, int t, IN_THREAD Tensor& tensor) {
  uint at = 8 + 8 * (uint)t;
  tensor.start = tensors[at];
  tensor.size = tensors[at + 1];
  tensor.r = tensors[at + 2];
  tensor.c = tensors[at + 3];
  tensor.tall = tensors[at + 4] > 0;
  tensor.gram = tensors[at + 5];
}

// Where a tensor's number k is in x.
FUNCTION int place_in_x(IN_THREAD const Tensor& tensor, int k) {
  return tensor.start + (tensor.tall ? k % tensor.r * tensor.c + k / tensor.r : k);
}

FUNCTION float one_over_norm(float sum_of_squares) {
  float norm = sqrt(sum_of_squares);
  return 1.0f / (norm > 1e-7f ? norm : 1e-7f);
}

// A tensor's number k is moved by lr times u; of matrices, u is as long as upstream makes it.
FUNCTION float moved(float w, float u, IN_THREAD const Tensor& tensor, float lr, float decay) {
  float scale = tensor.tall ? sqrt((float)tensor.c / (float)tensor.r) : 1.0f;
  return w * (1.0f - lr * decay) - lr * (scale * u);
}

// ---- a block for each tensor: r <= 64 -------------------------------------------------------------------------------

kernel void muon_step(device const int* tensors, device const float* packed, device const float* squares,
                      device const float* settings, device const float* coefficients, device const float* loss,
                      device const float* lr, device float* weights, device float* momentum, device float* x,
                      device float* ok, uint block, uint me) {
  SHARED float part[256];
  SHARED Rows<4> square[64 * 16];  // the Gram matrix, then its polynomial
  SHARED Rows<4> tile[32 * 17];
  int all = tensors[0], blocks = tensors[1], row = (int)me / 16, column = (int)me % 16;
  Tensor tensor;
  read_tensor(tensors, (int)block, tensor);
  int start = tensor.start, size = tensor.size, r = tensor.r, c = tensor.c;

  float total = 0.0f;
  for (int k = (int)me; k < blocks; k += 256) total += squares[blocks + k];
  float norm = sqrt(block_sum(total, part, me, 256)), scale = clip_scale(norm, settings[2]), beta = settings[0];
  bool good = is_finite(norm) && is_finite(loss[0]);
  if (block == 0 && me == 0) ok[0] = good ? 1.0f : 0.0f;

  float sum = 0.0f;
  for (int k = (int)me; k < size; k += 256) {
    float g = scale * packed[all + start + k], before = packed[2 * all + start + k];
    float m = beta * before + g, u = g + beta * m;
    momentum[start + k] = good ? m : before;
    x[place_in_x(tensor, k)] = u;
    sum += u * u;
  }
  float factor = one_over_norm(block_sum(sum, part, me, 256));
  DEVICE_BARRIER

  int lines = good && r > 0 ? 5 : 0;
  for (int line = 0; line < lines; ++line) {
    float a = coefficients[3 * line], b = coefficients[3 * line + 1], q = coefficients[3 * line + 2];
    float gram[16], poly[16], next[8];
    clear(gram);
    clear(poly);
    fetch(x + start, c, r, 0, 0, true, factor, me, next);
    for (int k = 0; k < c; k += 32) {
      BARRIER
      put(tile, next, true, me);
      BARRIER
      if (k + 32 < c) fetch(x + start, c, r, k + 32, 0, true, factor, me, next);
      multiply(tile + row, 17, tile + column, 17, 32, gram);
    }
    for (int v = 0; v < 16; ++v) square[(4 * row + v / 4) * 16 + column].of[v % 4] = gram[v];
    BARRIER
    multiply(square + row, 16, square + column, 16, 64, poly);
    BARRIER
    for (int v = 0; v < 16; ++v) {
      square[(4 * row + v / 4) * 16 + column].of[v % 4] = b * gram[v] + q * poly[v];
    }
    for (int first = 0; first < c; first += 64) {  // columns of x, each of which needs no others
      float sums[16];
      clear(sums);
      fetch(x + start, r, c, 0, first, false, factor, me, next);
      for (int k = 0; k < r; k += 32) {
        BARRIER
        put(tile, next, false, me);
        BARRIER
        if (k + 32 < r) fetch(x + start, r, c, k + 32, first, false, factor, me, next);
        multiply(square + k * 16 + row, 16, tile + column, 17, 32, sums);
      }
      for (int v = 0; v < 16; ++v) {
        int p = 4 * row + v / 4, j = first + 4 * column + v % 4;
        if (p < r && j < c) {
          float own = x[start + p * c + j];
          x[start + p * c + j] = a * factor * own + sums[v];
        }
      }
    }
    factor = 1.0f;
    DEVICE_BARRIER
  }

  for (int k = (int)me; k < size; k += 256) {
    float w = packed[start + k];
    weights[start + k] = good ? moved(w, x[place_in_x(tensor, k)], tensor, lr[0], settings[1]) : w;
  }
  for (int k = size + (int)me; k < (size + 1023) / 1024 * 1024; k += 256) {
    weights[start + k] = 0.0f;
    momentum[start + k] = 0.0f;
  }
}

// ---- all tensors in each launch -------------------------------------------------------------------------------------

// owners: of each 1024 numbers, the tensor.
kernel void muon_momentum(device const int* tensors, device const int* owners, device const float* packed,
                          device const float* squares, device const float* settings, device const float* loss,
                          device float* momentum, device float* x, device float* sums, device float* ok, uint block,
                          uint me) {
  SHARED float part[256];
  int all = tensors[0], blocks = tensors[1];
  Tensor tensor;
  read_tensor(tensors, owners[block], tensor);

  float total = 0.0f;
  for (int k = (int)me; k < blocks; k += 256) total += squares[blocks + k];
  float norm = sqrt(block_sum(total, part, me, 256)), scale = clip_scale(norm, settings[2]), beta = settings[0];
  bool good = is_finite(norm) && is_finite(loss[0]);
  if (block == 0 && me == 0) ok[0] = good ? 1.0f : 0.0f;

  float sum = 0.0f;
  for (int n = 0; n < 4; ++n) {
    int e = (int)(block * 1024 + n * 256 + me), k = e - tensor.start;
    if (k < tensor.size) {
      float g = scale * packed[all + e], before = packed[2 * all + e];
      float m = beta * before + g, u = g + beta * m;
      momentum[e] = good ? m : before;
      x[place_in_x(tensor, k)] = u;
      sum += u * u;
    } else {
      momentum[e] = 0.0f;
      x[e] = 0.0f;
    }
  }
  sum = block_sum(sum, part, me, 256);
  if (me == 0) sums[block] = sum;
}

// One tile of a product. now: the line of coefficients, and what is made of left and right (the place among tiles is in
// units of numbers, of tensor tiles[3 block]):
//   0: gram = x x^T           left, right: x
//   1: poly = b gram + c gram gram    left, right: gram
//   2: x = a x + poly x       left: poly, right: x
// gram and poly equal their transposed: tiles above the diagonal are those below it. The first line's x isn't divided by
// its norm yet; `sums` has the sums of its squares.
kernel void muon_product(device const int* tensors, device const int* tiles, device const int* now,
                         device const float* coefficients, device const float* left, device const float* right,
                         device const float* sums, device float* out, uint block, uint me) {
  SHARED float part[256];
  SHARED Rows<4> lefts[32 * 17];
  SHARED Rows<4> rights[32 * 17];
  Tensor tensor;
  read_tensor(tensors, tiles[3 * block], tensor);
  int first = tiles[3 * block + 1], second = tiles[3 * block + 2], line = now[0], what = now[1];
  int r = tensor.r, c = tensor.c, row = (int)me / 16, column = (int)me % 16;
  float a = coefficients[3 * line], b = coefficients[3 * line + 1], q = coefficients[3 * line + 2];

  float factor = 1.0f;
  if (line == 0 && what != 1) {
    float sum = 0.0f;
    for (int k = (int)me; k < (tensor.size + 1023) / 1024; k += 256) sum += sums[tensor.start / 1024 + k];
    factor = one_over_norm(block_sum(sum, part, me, 256));
  }

  int inners = what == 0 ? c : r, columns = what == 2 ? c : r;
  int from = what == 0 ? tensor.start : tensor.gram, with = what == 1 ? tensor.gram : tensor.start;
  float left_factor = what == 0 ? factor : 1.0f;
  bool along = what == 0;
  float result[16], one[8], other[8];
  clear(result);
  fetch(left + from, inners, r, 0, first, along, left_factor, me, one);
  fetch(right + with, inners, columns, 0, second, along, factor, me, other);
  for (int k = 0; k < inners; k += 32) {
    BARRIER
    put(lefts, one, along, me);
    put(rights, other, along, me);
    BARRIER
    if (k + 32 < inners) {
      fetch(left + from, inners, r, k + 32, first, along, left_factor, me, one);
      fetch(right + with, inners, columns, k + 32, second, along, factor, me, other);
    }
    multiply(lefts + row, 17, rights + column, 17, 32, result);
  }

  int to = what == 2 ? tensor.start : tensor.gram;
  for (int v = 0; v < 16; ++v) {
    int p = first + 4 * row + v / 4, j = second + 4 * column + v % 4;
    if (p < r && j < columns) {
      float y = result[v];
      if (what == 1) y = b * right[with + p * r + j] + q * y;
      if (what == 2) y = a * factor * right[with + p * c + j] + y;
      out[to + p * columns + j] = y;
      if (what != 2 && first != second) out[to + j * columns + p] = y;
    }
  }
}

// u: what was orthogonalised, x: what came of it.
kernel void muon_apply(device const int* tensors, device const int* owners, device const float* packed,
                       device const float* u, device const float* x, device const float* settings,
                       device const float* lr, device const float* ok, device float* weights, uint block, uint me) {
  Tensor tensor;
  read_tensor(tensors, owners[block], tensor);
  for (int n = 0; n < 4; ++n) {
    int e = (int)(block * 1024 + n * 256 + me), k = e - tensor.start;
    float w = packed[e];
    if (k < tensor.size && ok[0] > 0.0f) {
      float by = tensor.r > 0 ? x[place_in_x(tensor, k)] : u[e];
      w = moved(w, by, tensor, lr[0], settings[1]);
    }
    weights[e] = w;
  }
}
