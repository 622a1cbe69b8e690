// One sample's loss and its gradients by closed form, and what is summed over all of them: ppo/loss.py of the distributions of
// policy/distributions.py. In which memory a decoder's product lies, and how its rows are apart (n), is the caller's.

#pragma once

#include "distributions.h"
#include "gpu/block_sum.metal.h"
#include "gpu/functions.metal.h"
#include "terms.h"

// A head's logits, n apart; nothing is kept. Logits: a pointer.
template <class Logits, int MASKED>
struct ColumnOfLogits {
  Logits logits;
  IN_DEVICE const uint8_t* masks;
  uint n;

  FUNCTION float at(uint k) const { return legal(k) ? (float)logits[k * n] : -1e4f; }
  FUNCTION bool legal(uint k) const { return !MASKED || masks[k] != 0; }
  FUNCTION float keep(uint, float e) const { return e; }
  FUNCTION float share(uint, float logp, float) const { return exp(logp); }
  FUNCTION float probability(uint, float logp) const { return exp(logp); }
};

// Of a sample's actions the log-probability, and of each head its logits' log-sum and its entropy; y and masks are that
// sample's. Logits, Actions and Sizes: pointers, in whatever memory.
template <int MASKED, int HEADS, class Logits, class Actions, class Sizes>
FUNCTION float of_choices(Logits y, IN_DEVICE const uint8_t* masks, Actions actions, Sizes sizes, uint n, uint i,
                          IN_THREAD float (&log_sums)[HEADS + 1], IN_THREAD float (&entropies)[HEADS + 1]) {
  float logprob = 0.0f;
  uint first = 0;
#pragma unroll
  for (int head = 0; head < HEADS; ++head) {
    ColumnOfLogits<Logits, MASKED> logits = {y + first * n, masks + (MASKED ? first : 0), n};
    float chosen;
    categorical_head(logits, sizes[head], (int)actions[i * (uint)HEADS + (uint)head], log_sums[head], entropies[head], chosen);
    logprob += chosen;
    first += (uint)sizes[head];
  }
  return logprob;
}

// How many deviations a number is from its mean.
FUNCTION float distance_of(float action, float mean, float limit, float logstd) {
  return (action - within(mean, limit)) * exp(-logstd);
}

// The log-probability of a sample's numbers, A of them; y are its means. Means, Actions, Deviations: pointers.
template <class Means, class Actions, class Deviations>
FUNCTION float of_numbers(Means y, Actions actions, Deviations logstd, float limit, uint n, uint A, uint i) {
  float logprob = 0.0f;
  for (uint k = 0; k < A; ++k) {
    float s = (float)logstd[k], distance = distance_of(actions[i * A + k], (float)y[k * n], limit, s);
    logprob += normal_logprob(distance, s);
  }
  return logprob;
}

// What a sample is compared with. gain: minus the weighted, normalised advantage; known: see terms.h.
struct Compared {
  float old_logprob, old_value, gain, known, adv;
};

// Sums over samples: policy, twice value, old_kl, kl, clipfrac, entropy.
struct SampleSums {
  float of[6];
};

// The gradients dy of a sample's choices and value, and its part of the sums. `each`: what it counts; settings: as of the
// kernel `loss`. dy may be y: nothing of it is read after it was written.
template <class Low, int MASKED, int HEADS, class Logits, class Gradients, class Actions, class Sizes>
FUNCTION float sample_gradients(Logits y, Gradients dy, IN_DEVICE const uint8_t* legal, Actions actions, Sizes sizes, uint n,
                                uint A, uint i, float logprob, IN_THREAD float (&log_sums)[HEADS + 1],
                                IN_THREAD float (&entropies)[HEADS + 1], IN_THREAD const Compared& by,
                                IN_THREAD const PPONumbers& numbers, float vf_coef, float ent_coef, float each,
                                IN_THREAD PPOTerms& terms, IN_THREAD SampleSums& sums) {
  float new_value = (float)y[A * n];
  ppo_terms(logprob, by.old_logprob, by.gain, new_value, by.old_value, by.known, by.adv, numbers, terms);
  dy[A * n] = (Low)(each * vf_coef * terms.by_value);
  sums.of[0] += terms.policy, sums.of[1] += terms.square, sums.of[2] += terms.old_kl, sums.of[3] += terms.kl;
  sums.of[4] += terms.outside;
  uint first = 0;
#pragma unroll
  for (int head = 0; head < HEADS; ++head) {
    sums.of[5] += entropies[head];
    ColumnOfLogits<Logits, MASKED> logits = {y + first * n, legal + (MASKED ? first : 0), n};
    int action = (int)actions[i * (uint)HEADS + (uint)head];
    for (int k = 0; k < sizes[head]; ++k) {
      float of_logprob, of_entropy;
      categorical_gradient(logits, k, action, log_sums[head], entropies[head], of_logprob, of_entropy);
      dy[(first + (uint)k) * n] = (Low)ppo_slope(each, terms.by_logprob, of_logprob, ent_coef, of_entropy);
    }
    first += (uint)sizes[head];
  }
  return each * terms.by_logprob;
}

// The loss, and the metrics (7) in the order of METRICS in ppo/loss.py, of the means of what was summed.
FUNCTION float write_metrics(IN_THREAD const SampleSums& means, float vf_coef, float ent_coef, IN_DEVICE float* metrics) {
  float loss = ppo_total(means.of[0], 0.5f * means.of[1], means.of[5], vf_coef, ent_coef);
  metrics[0] = means.of[0], metrics[1] = 0.5f * means.of[1], metrics[2] = means.of[5], metrics[3] = loss;
  metrics[4] = means.of[2], metrics[5] = means.of[3], metrics[6] = means.of[4];
  return loss;
}

// Mean and deviation (unbiased) of R minibatches of n advantages, of the moments (R, 3, G) of their parts.
// A single advantage is taken as it is: mean 0, deviation 1.
template <class Moments>
FUNCTION void spread_of(Moments moments, uint n, uint G, uint R, IN_SHARED float* part, uint me, uint threads,
                        IN_THREAD float& mean, IN_THREAD float& deviation) {
  float total = 0.0f, squares = 0.0f, all = (float)n * (float)R;
  for (uint k = me; k < R * G; k += threads) {
    uint at = k / G * 3u * G + k % G;
    total += moments[at] * moments[at + G];
  }
  mean = block_sum(total, part, me, threads) / all;
  for (uint k = me; k < R * G; k += threads) {
    uint at = k / G * 3u * G + k % G;
    float away = moments[at + G] - mean;
    squares += moments[at + 2u * G] + moments[at] * away * away;
  }
  deviation = sqrt(block_sum(squares, part, me, threads) / (all - 1.0f));
  if (all == 1.0f) mean = 0.0f, deviation = 1.0f;
}
