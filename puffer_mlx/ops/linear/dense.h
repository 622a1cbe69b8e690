// A layer whose activation's slope follows from what it gives: y = f(x W^T + b) with x (n, K), W (M, K), b (M,).
//
// The activation follows the product while a part's rows are in cache. Backward, one pass makes of dL/dy what the
// product's gradients are taken of.

#pragma once

#include "ops/cpu/activations.h"
#include "ops/cpu/binding.h"
#include "ops/cpu/elements.h"
#include "ops/cpu/node.h"
#include "ops/linear/linear.h"

namespace puffer {

// The activations of `dense` in __init__.py.
inline Activation followed_by(bool tanh_follows) { return tanh_follows ? Activation::kTanh : Activation::kRelu; }

// y (n, M): of tanh, or of ReLU
inline Array dense(const Array& x, const Array& weight, const Array& bias, bool tanh_follows) {
  expect_linear(x, weight, "dense: x (n, K) and weight (M, K) don't agree");
  expect(x.shape(1) == weight.shape(1), "dense: x (n, K) and weight (M, K) don't agree");
  int n = x.shape(0), K = x.shape(1), M = weight.shape(0);
  expect_shapes("dense: bias must be (M,) float32", {{bias, {M}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto a = floats(in, 0), w = floats(in, 1), b = floats(in, 2);
    auto y = floats(to, 0);
    auto follow = [=](int64_t i, Channels at) { at.store(y + i, activate(followed_by(tanh_follows), at.load(y + i))); };
    auto prepare = [=](int begin, int end) {
      for (int i = begin; i < end; ++i) std::memcpy(y + int64_t(i) * M, b, sizeof(float) * M);
    };
    over_products(n, prepare, [=](int begin, int end) {
      auto rows = y + int64_t(begin) * M;
      gemm(kRowMajor, kAsIs, kTransposed, end - begin, M, K, 1, a + int64_t(begin) * K, K, w, K, 1, rows, M);
      if (gemm_splits) each_of(int64_t(begin) * M, int64_t(end) * M, follow);
    });
    if (!gemm_splits) over_elements(int64_t(n) * M, follow);
  };
  return call("Dense", kernel, {x, weight, bias}, {mx::Shape{n, M}})[0];
}

// Of dL/dy: dL/d(x W^T + b) (n, M), dW (M, K) and db (M,)
inline std::vector<Array> dense_gradients(const Array& x, const Array& y, const Array& dy, bool tanh_follows) {
  expect_linear(x, y, "dense: x (n, K), y and dy (n, M) don't agree");
  int n = x.shape(0), K = x.shape(1), M = y.shape(1);
  expect_shapes("dense: x (n, K), y and dy (n, M) don't agree", {{y, {n, M}}, {dy, {n, M}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto a = floats(in, 0), out = floats(in, 1), d = floats(in, 2);
    auto dz = floats(to, 0);
    over_elements(int64_t(n) * M, [=](int64_t i, Channels at) {
      Lanes y = at.load(out + i);
      at.store(dz + i, at.load(d + i) * slope(followed_by(tanh_follows), y, y));
    });
    weight_gradient(dz, a, n, M, K, false, floats(to, 1));
    bias_gradient(dz, n, M, false, floats(to, 2));
  };
  return call("DenseGradients", kernel, {x, y, dy}, {{n, M}, {M, K}, {M}}, {2});
}

OPERATION(dense);
OPERATION(dense_gradients);

}  // namespace puffer
