// PPO's loss of one sample and its gradients: ppo/loss.py. The one text of them in C: see ops/portable.h.
//
// Gradients at corners are MLX's: `maximum` gives a tie's to the unclipped branch, `clip` lets none pass at its bounds; where
// a ratio overflows, the clipped branch's is 0 times infinity.

#pragma once

#include "ops/portable.h"

namespace puffer {

struct PPONumbers {
  float low, high, clip, reach;  // 1 - clip_coef, 1 + clip_coef, clip_coef, vf_clip_coef
};

struct PPOTerms {
  float ratio, by_logprob, by_value;        // gradients of policy and of value, not of their means
  float policy, square, old_kl, kl, outside;  // what the metrics are means of; the value's term is half the square
};

// gain: minus the weighted, normalised advantage; known: what the return is the advantage above of, `old_value` or, of live
// advantages, `value`.
FUNCTION void ppo_terms(float logprob, float old_logprob, float gain, float value, float old_value, float known,
                        float advantage, IN_THREAD const PPONumbers& numbers, IN_THREAD PPOTerms& terms) {
  float logratio = logprob - old_logprob, ratio = exp(logratio);
  float near = ratio < numbers.low ? numbers.low : ratio > numbers.high ? numbers.high : ratio;
  float clipped = gain * near, plain = gain * ratio;
  terms.ratio = ratio;
  terms.by_logprob = (clipped > plain ? 0.0f : gain) * ratio;  // NaN where the ratio overflows
  terms.policy = clipped > plain ? clipped : plain;

  float expected = known + advantage, change = value - old_value, reach = numbers.reach;
  float moved = change < -reach ? -reach : change > reach ? reach : change;
  float error = value - expected, moved_error = old_value + moved - expected;
  bool held = moved_error * moved_error > error * error;
  terms.by_value = held ? (change > -reach && change < reach ? moved_error : 0.0f) : error;
  terms.square = held ? moved_error * moved_error : error * error;

  float away = ratio - 1.0f;
  terms.old_kl = -logratio;
  terms.kl = ratio - 1.0f - logratio;
  terms.outside = (away < 0.0f ? -away : away) > numbers.clip ? 1.0f : 0.0f;
}

// The loss of the means of its terms.
FUNCTION float ppo_total(float policy, float value, float entropy, float vf_coef, float ent_coef) {
  return policy + vf_coef * value - ent_coef * entropy;
}

// Gradient by a logit (or a mean) of the loss, `each` being what a sample counts.
FUNCTION float ppo_slope(float each, float by_logprob, float of_logprob, float ent_coef, float of_entropy) {
  return each * (by_logprob * of_logprob - ent_coef * of_entropy);
}

}  // namespace puffer
