// An epoch of PPO with Adam as one node, for small policies without recurrent state: forward pass, loss, backward pass, gradient clip and
// step for each minibatch. As an MLX graph, a minibatch of 64 samples takes ten times as long.

#pragma once

#include <algorithm>
#include <array>
#include <tuple>

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"
#include "ppo/optimizers/adam/adam.h"
#include "ppo/small_networks/loss.h"
#include "ppo/small_networks/tower.h"

namespace puffer {

// Description of the policy: layers of each tower; heads of each tower; index of logstd among the weights, or -1 for discrete actions;
// number of choices of each action head. Actions and value have one tower together, or one each.
using Network = std::tuple<std::vector<std::vector<LayerSpec>>, std::vector<std::vector<LayerSpec>>, int, std::vector<int>>;

// Counters of good and skipped minibatches: see ppo/precision.
struct Counts {
  int good, skipped, in_a_row, longest;
};

inline Counts next_counts(Counts before, bool ok) {
  int row = ok ? 0 : before.in_a_row + 1;
  return {ok ? before.good + 1 : 0, before.skipped + (ok ? 0 : 1), row, std::max(before.longest, row)};
}

// The samples of one minibatch, copied from a rollout.
class Gathered {
 public:
  Gathered(int samples, int inputs, int heads, int A, bool masked)
      : inputs_(inputs), heads_(heads), A_(A), x_(size_t(samples) * inputs), actions_(size_t(samples) * heads),
        targets_(size_t(samples) * 3), masks_(masked ? size_t(samples) * A : 0), n_(samples) {}

  // Gather a minibatch: copy the samples `rows` of a rollout into this object. The rollout's arrays are in[from] and the next
  // inputs: observations (float32 or uint8), actions, log-probabilities, values, advantages and, if masked, masks.
  void take(const Buffers& in, int from, bool as_bytes, const int32_t* rows) {
    for (int i = 0; i < n_; ++i) {
      int64_t row = rows[i];
      float* x = x_.data() + int64_t(i) * inputs_;
      if (as_bytes)
        std::copy_n(static_cast<const uint8_t*>(in[from]) + row * inputs_, inputs_, x);
      else
        std::memcpy(x, floats(in, from) + row * inputs_, sizeof(float) * inputs_);
      std::memcpy(actions_.data() + int64_t(i) * heads_, floats(in, from + 1) + row * heads_, sizeof(float) * heads_);
      for (int k = 0; k < 3; ++k) targets_[size_t(k) * n_ + i] = floats(in, from + 2 + k)[row];
      if (!masks_.empty())
        std::memcpy(masks_.data() + int64_t(i) * A_, static_cast<const uint8_t*>(in[from + 5]) + row * A_, A_);
    }
  }

  const float* x() const { return x_.data(); }
  ChosenActions chosen() const { return {actions_.data(), masks_.empty() ? nullptr : masks_.data()}; }
  Targets targets() const { return {targets_.data(), targets_.data() + n_, targets_.data() + 2 * size_t(n_)}; }

 private:
  int inputs_, heads_, A_;
  std::vector<float> x_, actions_, targets_;
  std::vector<uint8_t> masks_;
  int n_;
};

// Train on all minibatches of an epoch. A minibatch whose loss or gradients aren't finite changes nothing. Each tower has one thread;
// the result doesn't depend on the number of threads.
//
//   weights, momentum, second  trees of k arrays
//   made, lr, ent_coef         scalars; made is the number of previous steps
//   counts                     (4,) int32, see Counts
//   order                      (K, M) int32, sample indices of each minibatch
//   observations               (n, D) float32 or uint8, for the n samples of a rollout
//   rollout                    actions (n, heads), log-probabilities, values and advantages (n,)
//   masks                      (n, A) uint8, or none
//   coefficients               clip_coef, vf_coef, vf_clip_coef, largest gradient norm, largest KL, beta1, beta2, eps, weight decay. A
//                              minibatch with a larger KL ends the epoch without a step.
//
// Returns k weights, k first and k second moments, the number of steps (), metrics (K, 7), finite (K,) and counts (4,) int32.
// finite is 1 for a minibatch that made a step or ended the epoch by its KL. Metrics and flags after the epoch's end are 0.
inline Arrays ppo_epoch(const Arrays& weights, const Arrays& momentum, const Arrays& second, const Array& made,
                        const Array& lr, const Array& ent_coef, const Array& counts, const Array& observations,
                        const Arrays& rollout, const std::optional<Array>& masks, const Array& order,
                        const Network& network, const std::array<double, 9>& coefficients) {
  expect(gemm != nullptr, "ppo_epoch: no BLAS is set");
  auto [tower_layers, tower_heads, logstd_place, head_sizes] = network;
  int k = static_cast<int>(weights.size()), A = 0, heads = int(head_sizes.size());
  for (int size : head_sizes) A += size;
  auto inputs = step_inputs("ppo_epoch", {weights, momentum, second}, {made, lr, ent_coef});
  expect(observations.ndim() == 2 && rollout.size() == 4, "ppo_epoch: observations must be (n, D), and four follow");
  int n = observations.shape(0), D = observations.shape(1);
  bool as_bytes = observations.dtype() == mx::uint8;
  expect(as_bytes || observations.dtype() == mx::float32, "ppo_epoch: observations must be float32 or uint8");
  expect_shapes("ppo_epoch", {{rollout[0], {n, heads}}, {rollout[1], {n}}, {rollout[2], {n}}, {rollout[3], {n}}});
  expect(!masks || (masks->dtype() == mx::uint8 && masks->shape() == mx::Shape{n, A}), "ppo_epoch: masks (n, A) uint8");
  expect(order.ndim() == 2 && order.dtype() == mx::int32, "ppo_epoch: the order must be (K, M) int32");
  expect(counts.shape() == mx::Shape{4} && counts.dtype() == mx::int32, "ppo_epoch: counts must be (4,) int32");
  inputs.insert(inputs.end(), {counts, order, observations});
  inputs.insert(inputs.end(), rollout.begin(), rollout.end());
  if (masks) inputs.push_back(*masks);
  int K = order.shape(0), M = order.shape(1), first = 3 * k;  // index of the input after the three trees
  bool masked = masks.has_value(), continuous = logstd_place >= 0;
  std::vector<int64_t> sizes;
  for (auto& weight : weights) sizes.push_back(weight.size());

  auto kernel = [=, layers = tower_layers, tops = tower_heads, place = logstd_place, choices = head_sizes](
                    const Buffers& in, const Outputs& to) {
    auto [clip_coef, vf, vf_clip, max_norm, largest_kl, beta1, beta2, eps, decay] = coefficients;
    Tensors tensors;
    std::vector<std::vector<float>> gradients;
    for (int i = 0; i < k; ++i) {
      for (int tree = 0; tree < 3; ++tree)
        if (to[tree * k + i] != in[tree * k + i])
          std::memcpy(to[tree * k + i], in[tree * k + i], sizeof(float) * sizes[i]);
      gradients.emplace_back(sizes[i]);
      tensors.at.push_back(floats(to, i));
      tensors.gradients.push_back(gradients.back().data());
    }
    float steps = *floats(in, first), rate = *floats(in, first + 1);
    float clip = float(clip_coef);
    PPOCoefficients of_loss{1 - clip, 1 + clip, clip, float(vf_clip), float(vf), *floats(in, first + 2)};
    auto& counted = *static_cast<Counts*>(to[3 * k + 3]);
    counted = *static_cast<const Counts*>(in[first + 3]);
    auto rows = static_cast<const int32_t*>(in[first + 4]);

    std::vector<Tower> towers;
    for (size_t t = 0; t < layers.size(); ++t) towers.emplace_back(layers[t], tops[t], A + 1, M);
    Gathered batch(M, D, heads, A, masked);
    std::vector<float> y(size_t(M) * (A + 1)), dy(y.size());
    auto each_tower = [&](const std::function<void(int)>& work) { run_parts(int(towers.size()), work); };
    float *all_metrics = floats(to, 3 * k + 1), *finite = floats(to, 3 * k + 2);
    std::fill_n(all_metrics, int64_t(K) * kMetrics, 0.0f);
    std::fill_n(finite, K, 0.0f);
    for (int b = 0; b < K; ++b) {
      batch.take(in, first + 5, as_bytes, rows + int64_t(b) * M);
      each_tower([&](int t) { towers[t].forward(tensors, batch.x(), M, y.data()); });
      float* logstd = continuous ? tensors.at[place] : nullptr;
      Likelihood likelihood(choices, continuous, logstd);
      Metrics metrics = ppo_loss(likelihood, of_loss, y.data(), A, M, batch.chosen(), heads, batch.targets(),
                                 dy.data(), continuous ? tensors.gradients[place] : nullptr);
      std::copy(metrics.begin(), metrics.end(), all_metrics + int64_t(b) * kMetrics);
      if (metrics[kKl] > float(largest_kl)) {
        finite[b] = std::all_of(metrics.begin(), metrics.end(), [](float x) { return std::isfinite(x); });
        break;
      }
      each_tower([&](int t) { towers[t].backward(tensors, batch.x(), M, dy.data()); });
      double squares = 0;
      for (int i = 0; i < k; ++i) squares += sum_of_squares(tensors.gradients[i], sizes[i]);
      Clip clip = clip_of(squares, metrics[kTotal], float(max_norm));
      steps += clip.ok;
      AdamStep step = adam_step_of({beta1, beta2, eps, decay}, clip.scale, rate, steps);
      for (int i = 0; clip.ok && i < k; ++i) {
        float *w = floats(to, i), *m = floats(to, k + i), *v = floats(to, 2 * k + i);
        adam_run(step, w, tensors.gradients[i], m, v, sizes[i]);
      }
      finite[b] = clip.ok;
      counted = next_counts(counted, clip.ok);
    }
    *floats(to, 3 * k) = steps;
  };
  auto shapes = step_shapes(weights, 3, 1);
  shapes.insert(shapes.end(), {mx::Shape{K, kMetrics}, mx::Shape{K}, mx::Shape{4}});
  std::vector<mx::Dtype> dtypes(shapes.size(), mx::float32);
  dtypes.back() = mx::int32;
  return call("PPOEpoch", kernel, inputs, shapes, {}, dtypes);
}

OPERATION(ppo_epoch);

}  // namespace puffer
