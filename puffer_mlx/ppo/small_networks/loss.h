// PPO's loss of a minibatch and its gradients by the policy's outputs, in closed form. Equations: ppo/loss.py and
// policy/distributions.py.

#pragma once

#include <array>

#include "ops/distributions.h"
#include "ppo/closed_form/terms.h"

namespace puffer {

// The logits of one head, which are adjacent, for the functions of ops/distributions.h. Caches the probabilities.
struct RowOfLogits {
  const float* logits;
  const uint8_t* mask;  // null without masks
  float* cached;

  float at(int k) const { return legal(k) ? logits[k] : -1e4f; }
  bool legal(int k) const { return !mask || mask[k]; }
  float keep(int k, float e) const { return cached[k] = e; }
  float share(int k, float, float sum) const { return cached[k] /= sum; }
  float probability(int k, float) const { return cached[k]; }
};

// Targets of the loss, (n,) each: log-probabilities, values and advantages of the rollout.
struct Targets {
  const float *logprob, *value, *advantage;
};

struct Chosen {
  const float* actions;  // (n, heads)
  const uint8_t* masks;  // (n, A), or null
};

constexpr int kMetrics = 7, kTotal = 3, kKl = 5;
using Metrics = std::array<float, kMetrics>;  // in the order of METRICS

// Mean and inverse of the unbiased standard deviation of n advantages. A single advantage isn't normalised.
struct Scale {
  float mean = 0, inverse = 1;

  Scale(const float* x, int n) {
    if (n == 1) return;
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) sum += x[i];
    double m = sum / n;
    for (int i = 0; i < n; ++i) squares += (x[i] - m) * (x[i] - m);
    mean = float(m);
    inverse = 1 / (float(std::sqrt(squares / (n - 1))) + 1e-8f);
  }
};

// Joint log-probability and entropy of one sample's actions, and their gradients by the policy's outputs.
class Likelihood {
 public:
  Likelihood(const std::vector<int>& sizes, bool continuous, const float* logstd)
      : sizes_(sizes), continuous_(continuous), logstd_(logstd) {
    for (int size : sizes) outputs_ += size;
    by_logprob.resize(outputs_);
    by_entropy.resize(outputs_);
    by_logstd.resize(continuous ? outputs_ : 0);
    for (int j = 0; continuous && j < outputs_; ++j) precision_.push_back(std::exp(-logstd[j]));
  }

  float logprob = 0, entropy = 0;
  std::vector<float> by_logprob, by_entropy;  // (A,): gradients by the logits or means
  std::vector<float> by_logstd;               // (A,): gradient of the log-probability by logstd. The entropy's gradient by logstd is 1.

  void of(const float* outputs, const float* actions, const uint8_t* mask) {
    logprob = entropy = 0;
    continuous_ ? of_normals(outputs, actions) : of_choices(outputs, actions, mask);
  }

 private:
  void of_normals(const float* means, const float* actions) {
    for (int j = 0; j < outputs_; ++j) {
      float distance = (actions[j] - means[j]) * precision_[j];
      logprob += normal_logprob(distance, logstd_[j]);
      entropy += normal_entropy(logstd_[j]);
      by_logprob[j] = distance * precision_[j];
      by_logstd[j] = normal_by_logstd(distance);
    }
  }

  void of_choices(const float* logits, const float* actions, const uint8_t* mask) {
    for (size_t head = 0, first = 0; head < sizes_.size(); first += sizes_[head++]) {
      int size = sizes_[head], action = int(actions[head]);
      RowOfLogits row{logits + first, mask ? mask + first : nullptr, by_logprob.data() + first};
      float log_sum, head_entropy, chosen;
      categorical_head(row, size, action, log_sum, head_entropy, chosen);
      for (int k = 0; k < size; ++k)
        categorical_gradient(row, k, action, log_sum, head_entropy, by_logprob[first + k], by_entropy[first + k]);
      logprob += chosen;
      entropy += head_entropy;
    }
  }

  const std::vector<int>& sizes_;
  bool continuous_;
  const float* logstd_;
  int outputs_ = 0;
  std::vector<float> precision_;
};

// Return the metrics of n samples. y (n, A + 1): the policy's outputs, the value last. Writes the loss's gradients dy (n, A + 1) by y,
// and dlogstd (A,) unless it is null.
inline Metrics ppo_loss(Likelihood& likelihood, const PPOCoefficients& c, const float* y, int A, int n,
                        const Chosen& chosen, int heads, const Targets& targets, float* dy, float* dlogstd) {
  Scale scale(targets.advantage, n);
  std::array<double, kMetrics> sums = {};
  float each = 1.0f / n;
  PPOTerms terms;
  for (int j = 0; dlogstd && j < A; ++j) dlogstd[j] = -c.ent_coef;
  for (int i = 0; i < n; ++i) {
    auto row = y + int64_t(i) * (A + 1);
    auto d = dy + int64_t(i) * (A + 1);
    likelihood.of(row, chosen.actions + int64_t(i) * heads, chosen.masks ? chosen.masks + int64_t(i) * A : nullptr);
    float gain = -(targets.advantage[i] - scale.mean) * scale.inverse, old = targets.value[i];
    ppo_terms(likelihood.logprob, targets.logprob[i], gain, row[A], old, old, targets.advantage[i], c, terms);

    for (int k = 0; k < A; ++k) {
      float by_entropy = dlogstd ? 0 : likelihood.by_entropy[k];
      d[k] = ppo_slope(each, terms.by_logprob, likelihood.by_logprob[k], c.ent_coef, by_entropy);
      if (dlogstd) dlogstd[k] += each * terms.by_logprob * likelihood.by_logstd[k];
    }
    d[A] = each * c.vf_coef * terms.by_value;
    sums[0] += terms.policy;
    sums[1] += 0.5 * terms.square;
    sums[2] += likelihood.entropy;
    sums[4] += terms.old_kl;
    sums[5] += terms.kl;
    sums[6] += terms.is_clipped;
  }
  Metrics metrics;
  for (int k = 0; k < kMetrics; ++k) metrics[k] = float(sums[k] / n);
  metrics[3] = ppo_total(metrics[0], metrics[1], metrics[2], c);
  return metrics;
}

}  // namespace puffer
