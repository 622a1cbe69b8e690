// PPO's loss of one sample and its gradients (ppo/loss.py), for CPUs and GPUs: see ops/portable.h.
//
// Gradients where the loss has a corner are MLX's: `maximum` passes the gradient of equal arguments to the unclipped branch, and `clip`
// passes none at its bounds. If a ratio overflows, the clipped branch's gradient is 0 times infinity, NaN.

#pragma once

#include "ops/portable.h"

namespace puffer {

struct PPOCoefficients {
  float ratio_low, ratio_high, clip, vf_clip, vf_coef, ent_coef;  // ratio_low, ratio_high: 1 - clip, 1 + clip
};

struct PPOTerms {
  float ratio, by_logprob, by_value;               // gradients of one sample's loss, not divided by the number of samples
  float policy, square, old_kl, kl, is_clipped;  // terms of the metrics, where `square` is twice the value loss
};

// Compute one sample's terms of PPO's loss and metrics, and store them in `terms`. neg_advantage: the weighted, normalized
// advantage times -1. base: return minus advantage, which is old_value, or value if advantages are recomputed.
FUNCTION void ppo_terms(float logprob, float old_logprob, float neg_advantage, float value, float old_value, float base,
                        float advantage, IN_THREAD const PPOCoefficients& by, IN_THREAD PPOTerms& terms) {
  float logratio = logprob - old_logprob, ratio = exp(logratio);
  float bounded = ratio < by.ratio_low ? by.ratio_low : ratio > by.ratio_high ? by.ratio_high : ratio;
  float clipped = neg_advantage * bounded, plain = neg_advantage * ratio;
  terms.ratio = ratio;
  terms.by_logprob = (clipped > plain ? 0.0f : neg_advantage) * ratio;  // NaN if the ratio overflows
  terms.policy = clipped > plain ? clipped : plain;

  float expected = base + advantage, change = value - old_value, vf_clip = by.vf_clip;
  float moved = change < -vf_clip ? -vf_clip : change > vf_clip ? vf_clip : change;
  float error = value - expected, moved_error = old_value + moved - expected;
  bool uses_moved = moved_error * moved_error > error * error;
  terms.by_value = uses_moved ? (change > -vf_clip && change < vf_clip ? moved_error : 0.0f) : error;
  terms.square = uses_moved ? moved_error * moved_error : error * error;

  float difference = ratio - 1.0f;
  terms.old_kl = -logratio;
  terms.kl = ratio - 1.0f - logratio;
  terms.is_clipped = (difference < 0.0f ? -difference : difference) > by.clip ? 1.0f : 0.0f;
}

FUNCTION float ppo_total(float policy, float value, float entropy, IN_THREAD const PPOCoefficients& by) {
  return policy + by.vf_coef * value - by.ent_coef * entropy;
}

// Return the loss's gradient with respect to a logit or a mean. weight: the sample's weight in the loss. of_logprob, of_entropy: gradients
// of the log-probability and of the entropy with respect to this logit or mean.
FUNCTION float ppo_slope(float weight, float by_logprob, float of_logprob, float ent_coef, float of_entropy) {
  return weight * (by_logprob * of_logprob - ent_coef * of_entropy);
}

}  // namespace puffer
