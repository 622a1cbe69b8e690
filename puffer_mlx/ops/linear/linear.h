// Linear layers: y = x W^T + b with x (n, K), W (M, K), b (M,) and y (n, M), or y (M, n) if `columns`.
//
// A multithreaded BLAS spins while it waits for its threads, which on a busy machine takes several times as long as the product. So
// each call of the BLAS here computes one part of a product on one thread. Only Accelerate divides products itself, since all cores
// of a cluster share a matrix unit. Without a BLAS, these operations can't be used.

#pragma once

#include "ops/cpu/activations.h"
#include "ops/cpu/binding.h"
#include "ops/cpu/elements.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"

namespace puffer {

using Gemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                      int lda, const float* b, int ldb, float beta, float* c, int ldc);
inline Gemm gemm = nullptr;
inline bool gemm_splits = true;  // true if products are divided among threads here, false if the BLAS divides them
constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;

inline void expect_linear(const Array& rows, const Array& weight, const char* what) {
  expect(gemm != nullptr, "linear: no BLAS is set");
  expect(rows.dtype() == mx::float32 && weight.dtype() == mx::float32, "linear: arrays must be float32");
  expect(rows.ndim() == 2 && weight.ndim() == 2, what);
}

// Call prepare(first row, last row + 1) and then multiply(first row, last row + 1) for all rows. If products are divided here, this is
// done for 512 rows at a time, whose inputs and outputs stay in a core's cache (4096 rows took up to 1.7 times as long).
inline void over_products(int n, const std::function<void(int, int)>& prepare,
                          const std::function<void(int, int)>& multiply) {
  if (!gemm_splits) {
    over_rows(n, 1, prepare);
    if (n > 0) multiply(0, n);
    return;
  }
  constexpr int kRows = 512;
  over_rows(n, 1, [&](int begin, int end) {
    for (int row = begin; row < end; row += kRows) {
      prepare(row, std::min(end, row + kRows));
      multiply(row, std::min(end, row + kRows));
    }
  });
}

// Return y = f(x W^T + b), (n, M), with the activation f applied while rows are in cache; with `columns`, y^T = W x^T + b, (M, n), for
// which there must be no activation.
inline Array linear(const Array& x, const Array& weight, bool columns, const std::optional<Array>& bias, int activation) {
  expect_linear(x, weight, "linear: x (n, K) and weight (M, K) don't agree");
  expect(x.shape(1) == weight.shape(1), "linear: x (n, K) and weight (M, K) don't agree");
  int n = x.shape(0), K = x.shape(1), M = weight.shape(0);
  if (bias) expect_shapes("linear", {{*bias, {M}}});
  auto kernel = [=, biased = bias.has_value(), after = Activation(activation)](const Buffers& in, const Outputs& to) {
    auto a = floats(in, 0), w = floats(in, 1), b = biased ? floats(in, 2) : nullptr;
    auto y = floats(to, 0);
    auto prepare = [=](int begin, int end) {
      for (int m = 0; b && columns && m < M; ++m) std::fill_n(y + int64_t(m) * n + begin, end - begin, b[m]);
      for (int i = begin; b && !columns && i < end; ++i) std::memcpy(y + int64_t(i) * M, b, sizeof(float) * M);
    };
    auto follow = [=](int64_t i, Channels at) { at.store(y + i, activate(after, at.load(y + i))); };
    over_products(n, prepare, [=](int begin, int end) {
      auto rows = a + int64_t(begin) * K;
      int count = end - begin;
      float beta = b ? 1 : 0;
      if (columns)
        gemm(kRowMajor, kAsIs, kTransposed, M, count, K, 1, w, K, rows, K, beta, y + begin, n);
      else
        gemm(kRowMajor, kAsIs, kTransposed, count, M, K, 1, rows, K, w, K, beta, y + int64_t(begin) * M, M);
      if (gemm_splits && after != Activation::kNone) each_of(int64_t(begin) * M, int64_t(end) * M, follow);
    });
    if (!gemm_splits && after != Activation::kNone) over_elements(int64_t(n) * M, follow);
  };
  Arrays inputs{x, weight};
  if (bias) inputs.push_back(*bias);
  return call("Linear", kernel, inputs, {columns ? mx::Shape{M, n} : mx::Shape{n, M}})[0];
}

// Return dx (n, K) = dy W + add; add: (n, K) or none.
inline Array linear_input_gradient(const Array& dy, const Array& weight, bool columns,
                                   const std::optional<Array>& add) {
  expect_linear(dy, weight, "linear: dy and weight (M, K) don't agree");
  int n = dy.shape(columns ? 1 : 0), M = weight.shape(0), K = weight.shape(1);
  expect(dy.shape(columns ? 0 : 1) == M, "linear: dy and weight (M, K) don't agree");
  if (add) expect_shapes("linear", {{*add, {n, K}}});
  auto kernel = [=, adds = add.has_value()](const Buffers& in, const Outputs& to) {
    auto d = floats(in, 0), w = floats(in, 1), from = adds ? floats(in, 2) : nullptr;
    auto dx = floats(to, 0);
    auto prepare = [=](int begin, int end) {
      auto first = int64_t(begin) * K;
      if (from && from != dx) std::memcpy(dx + first, from + first, sizeof(float) * (end - begin) * K);
    };
    over_products(n, prepare, [=](int begin, int end) {
      int rows = end - begin;
      auto out = dx + int64_t(begin) * K;
      float beta = from ? 1 : 0;
      if (columns)
        gemm(kRowMajor, kTransposed, kAsIs, rows, K, M, 1, d + begin, n, w, K, beta, out, K);
      else
        gemm(kRowMajor, kAsIs, kAsIs, rows, K, M, 1, d + int64_t(begin) * M, M, w, K, beta, out, K);
    });
  };
  Arrays inputs{dy, weight};
  if (add) inputs.push_back(*add);
  return call("LinearInputGradient", kernel, inputs, {mx::Shape{n, K}}, {add ? 2 : -1})[0];
}

// Sum over rows: split the rows [0, n) into parts, call work(first row, rows, out) for each part, and write the sum of all `out`
// (size,), added in order, to `to`.
inline void sum_over_rows(int n, size_t size, float* to, const std::function<void(int, int, float*)>& work) {
  int rows = std::max(n / 16, 1024), parts = (n + rows - 1) / rows;
  std::vector<float> partial(parts * size);
  run_parts(parts, [&](int part) {
    work(part * rows, std::min(n - part * rows, rows), partial.data() + part * size);
  });
  std::memset(to, 0, sizeof(float) * size);
  for (int part = 0; part < parts; ++part) {
    for (size_t i = 0; i < size; ++i) to[i] += partial[part * size + i];
  }
}

// Sum products over rows, as `sum_over_rows`: work(first row, rows, beta, out) computes out = product + beta out. If the BLAS divides
// products, one call has at most 2^15 rows, which limits the memory that `work` allocates.
inline void sum_products(int n, size_t size, float* to,
                         const std::function<void(int, int, float, float*)>& work) {
  if (gemm_splits || n == 0) {
    sum_over_rows(n, size, to, [&](int begin, int count, float* out) { work(begin, count, 0, out); });
    return;
  }
  constexpr int kRows = 1 << 15;
  for (int begin = 0; begin < n; begin += kRows) work(begin, std::min(n - begin, kRows), begin ? 1 : 0, to);
}

// Compute to (M, K) = d^T a from d (n, M), or (M, n) if `columns`, and a (n, K).
inline void weight_gradient(const float* d, const float* a, int n, int M, int K, bool columns, float* to) {
  sum_products(n, size_t(M) * K, to, [=](int begin, int count, float beta, float* out) {
    auto rows = a + int64_t(begin) * K;
    if (columns)
      gemm(kRowMajor, kAsIs, kAsIs, M, K, count, 1, d + begin, n, rows, K, beta, out, K);
    else
      gemm(kRowMajor, kTransposed, kAsIs, M, K, count, 1, d + int64_t(begin) * M, M, rows, K, beta, out, K);
  });
}

// Compute to (M,), the sum of d over its n rows.
inline void bias_gradient(const float* d, int n, int M, bool columns, float* to) {
  sum_over_rows(n, M, to, [=](int begin, int count, float* out) {
    for (int i = begin; !columns && i < begin + count; ++i)
      for (int m = 0; m < M; ++m) out[m] += d[int64_t(i) * M + m];
    for (int m = 0; columns && m < M; ++m) {
      Lanes sums = {};
      for (int i = 0; i < count; i += kLanes) sums += Channels(i, count).load(d + int64_t(m) * n + begin);
      for (int lane = 0; lane < kLanes; ++lane) out[m] += sums[lane];
    }
  });
}

// Return dW (M, K) = dy^T x.
inline Array linear_weight_gradient(const Array& dy, const Array& x, bool columns) {
  expect_linear(dy, x, "linear: dy and x (n, K) don't agree");
  int n = x.shape(0), K = x.shape(1), M = dy.shape(columns ? 0 : 1);
  expect(dy.shape(columns ? 1 : 0) == n, "linear: dy and x (n, K) don't agree");
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    weight_gradient(floats(in, 0), floats(in, 1), n, M, K, columns, floats(to, 0));
  };
  return call("LinearWeightGradient", kernel, {dy, x}, {mx::Shape{M, K}})[0];
}

// Return db (M,), the sum of dy over its n rows.
inline Array linear_bias_gradient(const Array& dy, bool columns) {
  expect(dy.ndim() == 2 && dy.dtype() == mx::float32, "linear: dy must be (n, M), or (M, n), float32");
  int n = dy.shape(columns ? 1 : 0), M = dy.shape(columns ? 0 : 1);
  auto kernel = [=](const Buffers& in, const Outputs& to) { bias_gradient(floats(in, 0), n, M, columns, floats(to, 0)); };
  return call("LinearBiasGradient", kernel, {dy}, {mx::Shape{M}})[0];
}

// Return the gradients of y = f(x W^T + b), for an activation f whose slope is a function of y: with respect to x W^T + b (n, M), W
// (M, K) and b (M,).
inline std::vector<Array> dense_gradients(const Array& x, const Array& y, const Array& dy, int activation) {
  expect_linear(x, y, "dense: x (n, K), y and dy (n, M) don't agree");
  int n = x.shape(0), K = x.shape(1), M = y.shape(1);
  expect_shapes("dense", {{y, {n, M}}, {dy, {n, M}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto a = floats(in, 0), out = floats(in, 1), d = floats(in, 2);
    auto dz = floats(to, 0);
    over_elements(int64_t(n) * M, [=](int64_t i, Channels at) {
      Lanes y = at.load(out + i);
      at.store(dz + i, at.load(d + i) * slope(Activation(activation), y, y));
    });
    weight_gradient(dz, a, n, M, K, false, floats(to, 1));
    bias_gradient(dz, n, M, false, floats(to, 2));
  };
  return call("DenseGradients", kernel, {x, y, dy}, {{n, M}, {M, K}, {M}}, {2});
}

// Set the BLAS; call this only between evaluations. address: of `cblas_sgemm` with 32-bit integers, 0 for none; split: true to divide
// products among threads here.
inline void set_gemm(uintptr_t address, bool split) {
  gemm = reinterpret_cast<Gemm>(address);
  gemm_splits = split;
}

inline bool has_gemm() { return gemm != nullptr; }

OPERATION(linear, "x"_a, "weight"_a, "columns"_a, "bias"_a = nb::none(), "activation"_a = 0);
OPERATION(linear_input_gradient, "dy"_a, "weight"_a, "columns"_a, "add"_a = nb::none());
OPERATION(linear_weight_gradient);
OPERATION(linear_bias_gradient);
OPERATION(dense_gradients);
OPERATION(set_gemm, "address"_a, "split"_a = true);
OPERATION(has_gemm);

}  // namespace puffer
