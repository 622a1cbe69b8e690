// Muon as one node for all tensors: clip by the global norm, Nesterov momentum, orthogonalisation. If a gradient isn't finite, nothing
// changes. Plain MLX needs about 40 nodes per matrix; in small networks they take longer than the gradients. Equations and source:
// __init__.py.

#pragma once

#include <array>

#include "ops/cpu/binding.h"
#include "ops/cpu/threads.h"
#include "ops/linear/linear.h"
#include "ppo/optimizers/step.h"

namespace puffer {

// Coefficients that are constant during a run.
struct MuonConfig {
  float beta, decay;
  std::vector<std::array<float, 3>> coefficients;  // see Quintic
};

// Orthogonalise the matrix x (R, C) approximately, in place: move its singular values close to 1, as Muon does with updates.
inline void orthogonalise(float* x, int R, int C, const std::vector<std::array<float, 3>>& coefficients) {
  bool tall = R > C;
  int m = std::min(R, C);
  int64_t size = int64_t(R) * C, square = int64_t(m) * m;
  auto memory = std::make_unique_for_overwrite<float[]>(size + 2 * square);
  float *other = memory.get(), *gram = other + size, *poly = gram + square;
  float scale = one_over_norm(static_cast<float>(std::sqrt(sum_of_squares(x, size))));
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

// Make Muon's step for one tensor: compute new weights and momentum from w, the gradient g and the momentum m of shape (R, ...). R
// is 0 for 1-d tensors, which aren't orthogonalised.
inline void muon_tensor(const float* w, const float* g, const float* m, float* new_w, float* new_m, int64_t size, int R,
                        float clip, float lr, const MuonConfig& config) {
  auto update = std::make_unique_for_overwrite<float[]>(size);
  float beta = config.beta, scale = lr;
  for (int64_t i = 0; i < size; ++i) {
    float next = m[i];
    update[i] = nesterov(clip, g[i], beta, next);
    new_m[i] = next;
  }
  if (R > 0) {
    int C = static_cast<int>(size / R);
    orthogonalise(update.get(), R, C, config.coefficients);
    scale *= muon_scale(float(R), float(C));
  }
  if (config.decay != 0) {  // rounded separately, so that a step without decay doesn't change by a bit
    float decayed = 1 - lr * config.decay;
    for (int64_t i = 0; i < size; ++i) new_w[i] = decayed * w[i];
    w = new_w;
  }
  for (int64_t i = 0; i < size; ++i) new_w[i] = w[i] - scale * update[i];
}

// Make one step of Muon. weights, grads, momentum: trees of k arrays. lr and loss are scalars. Returns k weights, k momenta and ok
// (): 1, or 0 if nothing changed. Uses one thread per tensor.
inline Arrays muon_step(const Arrays& weights, const Arrays& grads, const Arrays& momentum, const Array& lr,
                        const Array& loss, float max_norm, float beta, float decay,
                        std::vector<std::array<float, 3>> coefficients) {
  size_t k = weights.size();
  expect(gemm != nullptr, "muon_step: no BLAS is set");
  auto inputs = step_inputs("muon_step", {weights, grads, momentum}, {lr, loss});
  std::vector<int64_t> sizes;
  std::vector<int> rows;
  for (auto& weight : weights) {
    sizes.push_back(weight.size());
    rows.push_back(weight.ndim() >= 2 && weight.size() ? weight.shape(0) : 0);
  }
  MuonConfig config{beta, decay, std::move(coefficients)};
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    double squares = 0;
    for (size_t i = 0; i < k; ++i) squares += sum_of_squares(floats(in, k + i), sizes[i]);
    Clip clip = clip_of(squares, *floats(in, 3 * k + 1), max_norm);
    float rate = *floats(in, 3 * k);
    *floats(to, 2 * k) = clip.ok;
    run_parts(static_cast<int>(k), [&](int i) {
      auto w = floats(in, i), g = floats(in, k + i), m = floats(in, 2 * k + i);
      auto new_w = floats(to, i), new_m = floats(to, k + i);
      if (clip.ok) {
        muon_tensor(w, g, m, new_w, new_m, sizes[i], rows[i], clip.scale, rate, config);
      } else {
        std::memcpy(new_w, w, sizeof(float) * sizes[i]);
        std::memcpy(new_m, m, sizeof(float) * sizes[i]);
      }
    });
  };
  return call("Muon", kernel, inputs, step_shapes(weights, 2, 1));
}

OPERATION(muon_step);

}  // namespace puffer
