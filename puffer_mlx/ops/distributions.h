// Action distributions of policy/distributions.py, for CPUs and GPUs (ops/portable.h).
//
// The template parameter `Logits` is a class with the logits of one head. On a CPU it caches results, on a GPU it doesn't. Its methods
// for choice k:
//   at(k), set(k, x)      read or replace the logit; an illegal choice has -1e4 (MASKED)
//   legal(k), masked()    true if choice k is legal; true if some choices may be illegal
//   keep(k, e)            cache e = exp(at(k) - top) and return it
//   weight(k, x)          return the cached e, or exp(x)
//   share(k, logp, sum)   return the probability and cache it
//   probability(k, logp)  return the cached probability, or exp(logp)

#pragma once

#include "ops/portable.h"

namespace puffer {

// ---- choices -------------------------------------------------------------------------------------------------------

// Compute one head's log-sum-exp and entropy, and the log-probability of `action`.
template <class Logits>
FUNCTION void categorical_head(IN_THREAD const Logits& logits, int size, int action, IN_THREAD float& log_sum,
                               IN_THREAD float& entropy, IN_THREAD float& logprob) {
  float top = logits.at(0), sum = 0.0f;
  for (int k = 1; k < size; ++k) {
    float logit = logits.at(k);
    top = logit > top ? logit : top;
  }
  for (int k = 0; k < size; ++k) sum += logits.keep(k, exp(logits.at(k) - top));
  log_sum = top + log(sum);
  entropy = 0.0f;
  for (int k = 0; k < size; ++k) {
    float logp = logits.at(k) - log_sum;
    entropy -= logits.share(k, logp, sum) * logp;
  }
  logprob = logits.at(action) - log_sum;
}

// Compute the gradients of the action's log-probability and of the head's entropy with respect to logit k.
template <class Logits>
FUNCTION void categorical_gradient(IN_THREAD const Logits& logits, int k, int action, float log_sum, float entropy,
                                   IN_THREAD float& of_logprob, IN_THREAD float& of_entropy) {
  float logp = logits.at(k) - log_sum, p = logits.probability(k, logp);
  of_entropy = logits.legal(k) ? -p * (logp + entropy) : 0.0f;
  of_logprob = logits.legal(k) ? (k == action ? 1.0f : 0.0f) - p : 0.0f;
}

// Sample one head's action by inverting the cumulative distribution: the first choice whose cumulative probability exceeds
// `uniform`, or the last legal one if rounding leaves none. On a CPU, V holds one agent per lane.
//
// top + log(sum) is subtracted at once, as in Python: training compares its log-probabilities with these, and for large logits two
// subtractions would round differently.
template <class V, class Logits>
FUNCTION void categorical_draw(IN_THREAD const Logits& logits, int size, V uniform, IN_THREAD V& action,
                               IN_THREAD V& logprob) {
  V top = V{} - 3.4028e38f, last = logits.masked() ? V{} : V{} + (float)(size - 1), sum = V{};
  for (int k = 0; k < size; ++k) {
    V x = finite(logits.at(k));
    if (logits.masked()) {
      auto legal = logits.legal(k);
      x = legal ? x : V{} - 1e4f;
      last = legal ? V{} + (float)k : last;
    }
    logits.set(k, x);
    top = x > top ? x : top;
  }
  for (int k = 0; k < size; ++k) sum += logits.keep(k, exp_to_zero(logits.at(k) - top));
  V bound = uniform * sum, reached = V{}, below = V{}, chosen = V{};
  for (int k = 0; k < size; ++k) {
    reached += logits.weight(k, logits.at(k) - top);
    below += reached <= bound ? V{} + 1.0f : V{};
  }
  action = below < last ? below : last;
  for (int k = 0; k < size; ++k) chosen = action == (float)k ? logits.at(k) : chosen;
  logprob = chosen - (top + log_from_one(sum));
}

// ---- normal distributions, one dimension ----------------------------------------------------------------------------

// Log-density of a number whose distance from the mean is `distance` standard deviations.
template <class V>
FUNCTION V normal_logprob(V distance, float logstd) {
  return -0.5f * distance * distance - 0.918938533f - logstd;  // log(2 pi) / 2
}

FUNCTION float normal_entropy(float logstd) { return 0.5f + 0.918938533f + logstd; }  // its gradient with respect to logstd is 1

// Gradient of the log-probability with respect to logstd. (The one with respect to the mean is distance * precision.)
FUNCTION float normal_by_logstd(float distance) { return distance * distance - 1.0f; }

// Sample a continuous action. deviation: e^logstd; precision: e^-logstd; limit: largest |action| and |mean|.
template <class V>
FUNCTION void normal_draw(V output, V noise, float limit, float logstd, float deviation, float precision,
                          IN_THREAD V& action, IN_THREAD V& logprob) {
  V mean = within(finite(output), limit);
  action = within(mean + deviation * noise, limit);
  logprob = normal_logprob((action - mean) * precision, logstd);
}

}  // namespace puffer
