// One step of the optimizer for all tensors in one node: global-norm clip, Nesterov momentum, orthogonalisation, and
// nothing at all where a gradient isn't finite. As a graph it is some 40 nodes for each matrix, which for small networks
// cost more than the gradients. What is computed and where it comes from: `ppo/optimizers/muon.py`.

#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "ops/linear/linear.h"
#include "node.h"
#include "ops/norm/norm.h"
#include "threads.h"

namespace puffer {

using Quintic = std::array<float, 3>;  // a, b, c of a X + b (X X^T) X + c (X X^T)^2 X

// The numbers of a step that don't change during a run.
struct MuonNumbers {
  float max_norm, beta;
  std::vector<Quintic> coefficients;
};

// Sum of the squares of a tensor's numbers, in float32 for runs of 4096 of them and in double over those.
inline double sum_of_squares(const float* x, int64_t size) {
  constexpr int64_t kRun = 4096;
  double total = 0;
  for (int64_t run = 0; run < size; run += kRun) {
    int count = static_cast<int>(std::min(kRun, size - run));
    Lanes squares = {};
    for (int i = 0; i < count; i += kLanes) {
      Lanes lanes = Channels(i, count).load(x + run);
      squares += lanes * lanes;
    }
    total += sum_of_lanes(squares);
  }
  return total;
}

// x (R, C) -> in place, singular values close to 1
inline void orthogonalise(float* x, int R, int C, const std::vector<Quintic>& coefficients) {
  bool tall = R > C;
  int m = std::min(R, C);
  int64_t size = int64_t(R) * C, square = int64_t(m) * m;
  auto memory = std::make_unique_for_overwrite<float[]>(size + 2 * square);
  float *other = memory.get(), *gram = other + size, *poly = gram + square;
  float scale = 1.0f / std::max(static_cast<float>(std::sqrt(sum_of_squares(x, size))), 1e-7f);
  for (int64_t i = 0; i < size; ++i) x[i] *= scale;
  float* from = x;
  for (auto [a, b, c] : coefficients) {
    if (tall)
      gemm(kRowMajor, kTransposed, kAsIs, m, m, R, 1, from, C, from, C, 0, gram, m);
    else
      gemm(kRowMajor, kAsIs, kTransposed, m, m, C, 1, from, C, from, C, 0, gram, m);
    std::memcpy(poly, gram, sizeof(float) * square);
    gemm(kRowMajor, kAsIs, kAsIs, m, m, m, c, gram, m, gram, m, b, poly, m);
    std::memcpy(other, from, sizeof(float) * size);
    if (tall)
      gemm(kRowMajor, kAsIs, kAsIs, R, m, m, 1, from, C, poly, m, a, other, C);
    else
      gemm(kRowMajor, kAsIs, kAsIs, m, C, m, 1, poly, m, from, C, a, other, C);
    std::swap(from, other);
  }
  if (from != x) std::memcpy(x, from, sizeof(float) * size);
}

// One tensor's step: w, g, m of a shape (R, ...) -> new w and m. R is 0 for tensors without a second dimension.
inline void muon_tensor(const float* w, const float* g, const float* m, float* new_w, float* new_m, int64_t size, int R,
                        float clip, float lr, const MuonNumbers& numbers) {
  auto update = std::make_unique_for_overwrite<float[]>(size);
  float beta = numbers.beta, scale = lr;
  for (int64_t i = 0; i < size; ++i) {
    float gradient = clip * g[i];
    new_m[i] = beta * m[i] + gradient;
    update[i] = gradient + beta * new_m[i];
  }
  if (R > 0) {
    int C = static_cast<int>(size / R);
    orthogonalise(update.get(), R, C, numbers.coefficients);
    scale *= std::sqrt(std::max(1.0f, float(R) / float(C)));
  }
  for (int64_t i = 0; i < size; ++i) new_w[i] = w[i] - scale * update[i];
}

// Trees of k arrays each, lr () and loss () -> k weights, k momenta, and () 1 where the step was made; else 0, and both
// are as before. A tensor is one thread's.
inline Arrays muon_step(const Arrays& weights, const Arrays& grads, const Arrays& momentum, const Array& lr,
                        const Array& loss, float max_norm, float beta, std::vector<Quintic> coefficients) {
  size_t k = weights.size();
  expect(gemm != nullptr, "muon_step: no BLAS is set");
  expect(grads.size() == k && momentum.size() == k, "muon_step: weights, grads and momentum differ in number");
  Arrays inputs;
  std::vector<mx::Shape> shapes;
  for (auto* tree : {&weights, &grads, &momentum}) {
    for (size_t i = 0; i < k; ++i) {
      expect_shapes("muon_step: weights, grads and momentum must be float32 and of the same shapes",
                    {{(*tree)[i], weights[i].shape()}});
      inputs.push_back((*tree)[i]);
    }
  }
  expect_shapes("muon_step: lr and loss must be float32 scalars", {{lr, {}}, {loss, {}}});
  inputs.push_back(lr);
  inputs.push_back(loss);
  for (int copy = 0; copy < 2; ++copy)
    for (auto& weight : weights) shapes.push_back(weight.shape());
  shapes.push_back({});
  std::vector<int64_t> sizes;
  std::vector<int> rows;
  for (auto& weight : weights) {
    sizes.push_back(weight.size());
    rows.push_back(weight.ndim() >= 2 && weight.size() ? weight.shape(0) : 0);
  }
  MuonNumbers numbers{max_norm, beta, std::move(coefficients)};
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    double squares = 0;
    for (size_t i = 0; i < k; ++i) squares += sum_of_squares(floats(in, k + i), sizes[i]);
    float norm = static_cast<float>(std::sqrt(squares)), rate = *floats(in, 3 * k);
    bool ok = std::isfinite(norm) && std::isfinite(*floats(in, 3 * k + 1));
    *floats(to, 2 * k) = ok;
    float clip = std::min(1.0f, numbers.max_norm / (norm + 1e-6f));
    run_parts(static_cast<int>(k), [&](int i) {
      auto w = floats(in, i), g = floats(in, k + i), m = floats(in, 2 * k + i);
      auto new_w = floats(to, i), new_m = floats(to, k + i);
      if (ok) {
        muon_tensor(w, g, m, new_w, new_m, sizes[i], rows[i], clip, rate, numbers);
      } else {
        std::memcpy(new_w, w, sizeof(float) * sizes[i]);
        std::memcpy(new_m, m, sizeof(float) * sizes[i]);
      }
    });
  };
  return call("Muon", kernel, inputs, shapes);
}

}  // namespace puffer
