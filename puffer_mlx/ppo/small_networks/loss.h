// PPO's loss of a minibatch and its gradients with respect to the policy's outputs, in closed form. Equations: ppo/loss.py and
// policy/distributions.py.

#pragma once

#include <array>

#include "ops/distributions.h"
#include "ppo/closed_form/terms.h"

namespace puffer {

// The logits of one action head, as ops/distributions.h reads them: its functions call `at`, `legal`, `keep`, `share` and `probability`.
// `cached` stores exp(logit - largest logit), and then the probability, of each choice.
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

// Actions of the rollout and the action masks.
struct ChosenActions {
  const float* actions;  // (n, heads)
  const uint8_t* masks;  // (n, A), or null
};

enum Metric { kPolicy, kValue, kEntropy, kTotal, kOldKl, kKl, kClipped, kMetrics };  // in the order of METRICS in ppo/loss.py
using Metrics = std::array<float, kMetrics>;

// Mean and inverse of the unbiased standard deviation of n advantages. A single advantage isn't normalised.
struct AdvantageScale {
  float mean = 0, inverse = 1;

  AdvantageScale(const float* x, int n) {
    if (n == 1) return;
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) sum += x[i];
    double m = sum / n;
    for (int i = 0; i < n; ++i) squares += (x[i] - m) * (x[i] - m);
    mean = float(m);
    inverse = 1 / (float(std::sqrt(squares / (n - 1))) + 1e-8f);
  }
};

// Joint log-probability and entropy of one sample's actions, and their gradients with respect to the policy's outputs.
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
  // Gradients of the log-probability and of the entropy with respect to the logits or means, (A,).
  std::vector<float> by_logprob, by_entropy;
  // Gradient of the log-probability with respect to logstd, (A,). The entropy's gradient with respect to logstd is 1.
  std::vector<float> by_logstd;

  // Compute log-probability, entropy and their gradients for the actions of one sample, and store them in this object's attributes.
  // mask: null without masks.
  void compute(const float* outputs, const float* actions, const uint8_t* mask) {
    logprob = entropy = 0;
    continuous_ ? compute_continuous(outputs, actions) : compute_discrete(outputs, actions, mask);
  }

 private:
  void compute_continuous(const float* means, const float* actions) {
    for (int j = 0; j < outputs_; ++j) {
      float distance = (actions[j] - means[j]) * precision_[j];
      logprob += normal_logprob(distance, logstd_[j]);
      entropy += normal_entropy(logstd_[j]);
      by_logprob[j] = distance * precision_[j];
      by_logstd[j] = normal_by_logstd(distance);
    }
  }

  void compute_discrete(const float* logits, const float* actions, const uint8_t* mask) {
    size_t first = 0;
    for (size_t head = 0; head < sizes_.size(); ++head) {
      int size = sizes_[head], action = int(actions[head]);
      RowOfLogits row{logits + first, mask ? mask + first : nullptr, by_logprob.data() + first};
      float log_sum, head_entropy, chosen;
      categorical_head(row, size, action, log_sum, head_entropy, chosen);
      for (int k = 0; k < size; ++k)
        categorical_gradient(row, k, action, log_sum, head_entropy, by_logprob[first + k], by_entropy[first + k]);
      logprob += chosen;
      entropy += head_entropy;
      first += size;
    }
  }

  const std::vector<int>& sizes_;
  bool continuous_;
  const float* logstd_;
  int outputs_ = 0;
  std::vector<float> precision_;
};

// Compute PPO's loss of n samples: return its metrics, and write its gradients. y (n, A + 1): the policy's outputs, the value last.
// dy (n, A + 1): gradients with respect to y. dlogstd (A,): gradients with respect to logstd, or null for discrete actions.
inline Metrics ppo_loss(Likelihood& likelihood, const PPOCoefficients& c, const float* y, int A, int n,
                        const ChosenActions& chosen, int heads, const Targets& targets, float* dy, float* dlogstd) {
  AdvantageScale scale(targets.advantage, n);
  std::array<double, kMetrics> sums = {};
  float each = 1.0f / n;
  PPOTerms terms;
  for (int j = 0; dlogstd && j < A; ++j) dlogstd[j] = -c.ent_coef;
  for (int i = 0; i < n; ++i) {
    auto row = y + int64_t(i) * (A + 1);
    auto d = dy + int64_t(i) * (A + 1);
    likelihood.compute(row, chosen.actions + int64_t(i) * heads, chosen.masks ? chosen.masks + int64_t(i) * A : nullptr);
    float gain = -(targets.advantage[i] - scale.mean) * scale.inverse, old = targets.value[i];
    ppo_terms(likelihood.logprob, targets.logprob[i], gain, row[A], old, old, targets.advantage[i], c, terms);

    for (int k = 0; k < A; ++k) {
      float by_entropy = dlogstd ? 0 : likelihood.by_entropy[k];
      d[k] = ppo_slope(each, terms.by_logprob, likelihood.by_logprob[k], c.ent_coef, by_entropy);
      if (dlogstd) dlogstd[k] += each * terms.by_logprob * likelihood.by_logstd[k];
    }
    d[A] = each * c.vf_coef * terms.by_value;
    sums[kPolicy] += terms.policy;
    sums[kValue] += 0.5 * terms.square;
    sums[kEntropy] += likelihood.entropy;
    sums[kOldKl] += terms.old_kl;
    sums[kKl] += terms.kl;
    sums[kClipped] += terms.is_clipped;
  }
  Metrics metrics;
  for (int k = 0; k < kMetrics; ++k) metrics[k] = float(sums[k] / n);
  metrics[kTotal] = ppo_total(metrics[kPolicy], metrics[kValue], metrics[kEntropy], c);
  return metrics;
}

}  // namespace puffer
