// One sample's loss and its gradients in closed form, and sums over all samples. Equations: ppo/loss.py and policy/distributions.py.
// The outputs of the decoder for one sample are `n` elements apart. The types Logits, Actions, Sizes, Deviations and Gradients are
// pointers to any address space.

#pragma once

#include "distributions.h"
#include "gpu/block_sum.metal.h"
#include "gpu/functions.metal.h"
#include "terms.h"

// The logits of one head, for the functions of distributions.h. Probabilities are not cached.
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

// Return the distance of a continuous action from the policy's mean, in standard deviations.
FUNCTION float distance_of(float action, float mean, float limit, float logstd) {
  return (action - within(mean, limit)) * exp(-logstd);
}

// Return the log-probability of sample i's actions. Writes log-sum and entropy of each head. HEADS is 0 for A continuous actions. y and
// masks point to the sample's elements.
template <int MASKED, int HEADS, class Logits, class Actions, class Sizes, class Deviations>
FUNCTION float logprob_of(Logits y, IN_DEVICE const uint8_t* masks, Actions actions, Sizes sizes, Deviations logstd, float limit,
                          uint n, uint A, uint i, IN_THREAD float (&log_sums)[HEADS + 1], IN_THREAD float (&entropies)[HEADS + 1]) {
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
  for (uint k = 0; HEADS == 0 && k < A; ++k) {
    float s = (float)logstd[k], distance = distance_of(actions[i * A + k], (float)y[k * n], limit, s);
    logprob += normal_logprob(distance, s);
  }
  return logprob;
}

// A sample's targets: see ppo_terms.
struct Targets {
  float old_logprob, old_value, neg_advantage, base, advantage;
};

struct SampleSums {
  float of[6];  // policy loss, twice the value loss, old_kl, kl, clipfrac, entropy
};

// Compute the loss's gradients dy with respect to a sample's logits and value, and add the sample's terms to the sums. weight: the sample's
// weight in the loss. Returns the gradient with respect to the log-probability. dy may be y, because each element is read before it is
// written.
template <class Low, int MASKED, int HEADS, class Logits, class Gradients, class Actions, class Sizes>
FUNCTION float sample_gradients(Logits y, Gradients dy, IN_DEVICE const uint8_t* legal, Actions actions, Sizes sizes, uint n,
                                uint A, uint i, float logprob, IN_THREAD float (&log_sums)[HEADS + 1],
                                IN_THREAD float (&entropies)[HEADS + 1], IN_THREAD const Targets& targets,
                                IN_THREAD const PPOCoefficients& by, float weight, IN_THREAD PPOTerms& terms,
                                IN_THREAD SampleSums& sums) {
  ppo_terms(logprob, targets.old_logprob, targets.neg_advantage, (float)y[A * n], targets.old_value, targets.base, targets.advantage, by,
            terms);
  dy[A * n] = (Low)(weight * by.vf_coef * terms.by_value);
  sums.of[0] += terms.policy, sums.of[1] += terms.square, sums.of[2] += terms.old_kl, sums.of[3] += terms.kl;
  sums.of[4] += terms.is_clipped;
  uint first = 0;
#pragma unroll
  for (int head = 0; head < HEADS; ++head) {
    sums.of[5] += entropies[head];
    ColumnOfLogits<Logits, MASKED> logits = {y + first * n, legal + (MASKED ? first : 0), n};
    int action = (int)actions[i * (uint)HEADS + (uint)head];
    for (int k = 0; k < sizes[head]; ++k) {
      float of_logprob, of_entropy;
      categorical_gradient(logits, k, action, log_sums[head], entropies[head], of_logprob, of_entropy);
      dy[(first + (uint)k) * n] = (Low)ppo_slope(weight, terms.by_logprob, of_logprob, by.ent_coef, of_entropy);
    }
    first += (uint)sizes[head];
  }
  return weight * terms.by_logprob;
}

// Write the metrics (7,) in the order of METRICS in ppo/loss.py. means: sums divided by the number of samples. Returns the loss.
FUNCTION float write_metrics(IN_THREAD const SampleSums& means, IN_THREAD const PPOCoefficients& by, IN_DEVICE float* metrics) {
  float loss = ppo_total(means.of[0], 0.5f * means.of[1], means.of[5], by);
  metrics[0] = means.of[0], metrics[1] = 0.5f * means.of[1], metrics[2] = means.of[5], metrics[3] = loss;
  metrics[4] = means.of[2], metrics[5] = means.of[3], metrics[6] = means.of[4];
  return loss;
}

// Compute mean and unbiased standard deviation of the n advantages on each of R ranks, from moments (R, 3, G). A single advantage isn't
// normalized: mean 0, deviation 1.
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
    float difference = moments[at + G] - mean;
    squares += moments[at + 2u * G] + moments[at] * difference * difference;
  }
  deviation = sqrt(block_sum(squares, part, me, threads) / (all - 1.0f));
  if (all == 1.0f) mean = 0.0f, deviation = 1.0f;
}
