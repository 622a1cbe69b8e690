// Distributions of actions: policy/distributions.py. The one text of them in C: see ops/words.h.
//
// `Logits` are a head's, in memory as its form has them, and say of choice k
//   at(k)                 the logit, that of an illegal choice being -1e4, MASKED; to draw from, the decoder's output, until
//   set(k, x)             replaces it
//   legal(k), masked()    whether it counts; whether any may not
//   keep(k, e)            takes e = exp(at(k) - top) and gives it back; where it pays, on a CPU, it is remembered
//   weight(k, x)          is that again: on a GPU exp(x)
//   share(k, logp, sum)   is its probability, remembered likewise, and
//   probability(k, logp)  what was remembered; on a GPU both are exp(logp)

#pragma once

#include "ops/words.h"

namespace puffer {

// ---- choices -------------------------------------------------------------------------------------------------------

// Of a head's choice: log sum exp of the logits, the entropy, and the choice's log-probability.
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

// Gradients of the choice's log-probability and of the head's entropy by logit k.
template <class Logits>
FUNCTION void categorical_gradient(IN_THREAD const Logits& logits, int k, int action, float log_sum, float entropy,
                                   IN_THREAD float& of_logprob, IN_THREAD float& of_entropy) {
  float logp = logits.at(k) - log_sum, p = logits.probability(k, logp);
  of_entropy = logits.legal(k) ? -p * (logp + entropy) : 0.0f;
  of_logprob = logits.legal(k) ? (k == action ? 1.0f : 0.0f) - p : 0.0f;
}

// A head's choice by inverting the cumulative distribution: the first up to which it is more than `uniform`, or the last legal
// one where rounding leaves none; and its log-probability. On a CPU of as many agents as a vector has lanes.
//
// Python subtracts top + log(sum) at once, which rounds where logits are large; so does this, as training's
// log-probabilities are compared with these.
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

// ---- normal distributions, of one dimension ------------------------------------------------------------------------

// Of a number so many deviations from the mean.
template <class V>
FUNCTION V normal_logprob(V distance, float logstd) {
  return -0.5f * distance * distance - 0.918938533f - logstd;  // log(2 pi) / 2
}

FUNCTION float normal_entropy(float logstd) { return 0.5f + 0.918938533f + logstd; }  // its gradient by logstd is 1

// Of the log-probability by logstd; that by the mean is distance times precision.
FUNCTION float normal_by_logstd(float distance) { return distance * distance - 1.0f; }

// deviation and precision: e^logstd and e^-logstd.
template <class V>
FUNCTION void normal_draw(V output, V noise, float limit, float logstd, float deviation, float precision,
                          IN_THREAD V& action, IN_THREAD V& logprob) {
  V mean = within(finite(output), limit);
  action = within(mean + deviation * noise, limit);
  logprob = normal_logprob((action - mean) * precision, logstd);
}

}  // namespace puffer
