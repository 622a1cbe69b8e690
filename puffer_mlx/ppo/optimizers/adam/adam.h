// Adam with decoupled weight decay as one node for all tensors; plain MLX needs about 15 nodes per tensor. The gradients are clipped
// by their global norm. If a gradient isn't finite, nothing changes. Equations: __init__.py.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"
#include "ppo/optimizers/step.h"

namespace puffer {

// Coefficients that are constant during a run.
struct AdamConfig {
  double beta1, beta2, eps, decay;
};

// Elements [first, first + count) of tensor i, the work of one task. A task takes tens of microseconds, longer than waking a thread.
struct AdamPart {
  static constexpr int64_t kNumbers = 1 << 15;
  int i;
  int64_t first, count;
};

// Return the coefficients of one step of Adam, such as its bias-corrected learning rate. made: number of steps, including this one.
inline AdamStep adam_step_of(const AdamConfig& n, float clip, float lr, double made) {
  return {clip,
          float(n.beta1),
          float(n.beta2),
          float(1 - n.beta1),
          float(1 - n.beta2),
          float(1 - lr * n.decay),
          float(lr / (1 - std::pow(n.beta1, made))),
          float(1 / std::sqrt(1 - std::pow(n.beta2, made))),
          float(n.eps)};
}

// Make Adam's step for one tensor: compute new weights w and moments m and v from w, gradients g, m and v, (count,) each.
inline void adam_run(const AdamStep& by, const float* __restrict__ w, const float* __restrict__ g,
                     const float* __restrict__ m, const float* __restrict__ v, float* __restrict__ new_w,
                     float* __restrict__ new_m, float* __restrict__ new_v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float weight = w[i], first = m[i], second = v[i];
    adam_move(by, g[i], weight, first, second);
    new_w[i] = weight;
    new_m[i] = first;
    new_v[i] = second;
  }
}

// Make Adam's step for one tensor in place: update the weights w and the moments m and v, (count,) each, with gradients g.
inline void adam_run(const AdamStep& by, float* __restrict__ w, const float* __restrict__ g, float* __restrict__ m,
                     float* __restrict__ v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) adam_move(by, g[i], w[i], m[i], v[i]);
}

// Make one step of Adam. weights, grads, momentum, second: trees of k arrays. made: number of previous steps. made, lr and loss are
// scalars. Returns k weights, k first moments, k second moments, the number of steps () and ok (): 1, or 0 if nothing changed. The
// result doesn't depend on the number of threads: elements are independent, and squares are summed in a fixed order.
inline Arrays adam_step(const Arrays& weights, const Arrays& grads, const Arrays& momentum, const Arrays& second,
                        const Array& made, const Array& lr, const Array& loss, float max_norm, double beta1,
                        double beta2, double eps, double decay) {
  int k = static_cast<int>(weights.size());
  auto inputs = step_inputs("adam_step", {weights, grads, momentum, second}, {made, lr, loss});
  std::vector<AdamPart> parts;
  for (int i = 0; i < k; ++i) {
    int64_t size = weights[i].size();
    for (int64_t first = 0; first < size; first += AdamPart::kNumbers)
      parts.push_back({i, first, std::min(AdamPart::kNumbers, size - first)});
  }
  AdamConfig config{beta1, beta2, eps, decay};
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    int count = static_cast<int>(parts.size());
    std::vector<double> squares(count);
    run_parts(count, [&](int p) {
      auto [i, first, size] = parts[p];
      squares[p] = sum_of_squares(floats(in, k + i) + first, size);
    });
    double sum = 0;
    for (double square : squares) sum += square;
    auto scalars = 4 * k;
    Clip clip = clip_of(sum, *floats(in, scalars + 2), max_norm);
    float steps = *floats(in, scalars) + clip.ok;
    *floats(to, 3 * k) = steps;
    *floats(to, 3 * k + 1) = clip.ok;
    AdamStep step = adam_step_of(config, clip.scale, *floats(in, scalars + 1), steps);
    run_parts(count, [&](int p) {
      auto [i, first, size] = parts[p];
      auto w = floats(in, i) + first, g = floats(in, k + i) + first;
      auto m = floats(in, 2 * k + i) + first, v = floats(in, 3 * k + i) + first;
      auto new_w = floats(to, i) + first, new_m = floats(to, k + i) + first, new_v = floats(to, 2 * k + i) + first;
      if (clip.ok) {
        adam_run(step, w, g, m, v, new_w, new_m, new_v, size);
      } else {
        std::memcpy(new_w, w, sizeof(float) * size);
        std::memcpy(new_m, m, sizeof(float) * size);
        std::memcpy(new_v, v, sizeof(float) * size);
      }
    });
  };
  return call("Adam", kernel, inputs, step_shapes(weights, 3, 2));
}

OPERATION(adam_step, "weights"_a, "grads"_a, "momentum"_a, "second"_a, "made"_a, "lr"_a, "loss"_a, "max_norm"_a, "beta1"_a,
          "beta2"_a, "eps"_a, "decay"_a);

}  // namespace puffer
