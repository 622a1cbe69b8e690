// A categorical distribution's log-probability, entropy and gradients: policy/distributions.py. The one text of them in C: see
// ops/words.h.
//
// `Logits` are a head's, in memory as its form has them, and say of choice k
//   at(k)                 the logit, that of an illegal choice being -1e4
//   legal(k)              whether it counts
//   keep(k, e)            takes e = exp(at(k) - top) and gives it back; where it pays, on a CPU, it is remembered
//   share(k, logp, sum)   is its probability, remembered likewise, and
//   probability(k, logp)  what was remembered; on a GPU both are exp(logp)

#pragma once

#include "ops/words.h"

namespace puffer {

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

}  // namespace puffer
