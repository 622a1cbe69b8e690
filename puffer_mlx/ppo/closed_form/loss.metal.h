// PPO's loss and its gradients in closed form. Equations: ppo/loss.py and policy/distributions.py.
//
// Each thread computes one of the n samples, in blocks of 256 threads.
//
//   y (A + 1, n)       logits or means, and the value in the last row
//   actions (n, heads) HEADS is 0 for continuous actions, which have logstd (1, A) and means clamped to `limit`
//   masks (n, A)       read if MASKED
//   sizes (HEADS,)     number of choices of each head
//   moments (R, 3, G)  moments of G groups of advantages, for each of the R ranks whose advantages are normalized together. G is 0 if
//                      advantages are recomputed from the values in y ("live"); these are neither normalized nor weighted.
//   partial            each row is one sum over the samples, with an element per block, so that the order of additions is fixed
//
// Gradients are those of the scaled loss.

#pragma once

#include "sample.metal.h"

FUNCTION uint blocks_of(uint n) { return (n + 255u) / 256u; }

// Compute moments (3, G) of n advantages. Each block computes count, mean and sum of squared deviations of one group.
KERNEL advantage_moments: float adv, int shape{n G} -> float moments {
  SHARED float part[256];
  uint n = (uint)shape.n, G = (uint)shape.G;
  float mine = 0.0f, sum = 0.0f, squares = 0.0f;
  for (uint k = i; k < n; k += 256u * G) {
    mine += 1.0f;
    sum += adv[k];
  }
  float count = block_sum(mine, part, me, 256), mean = block_sum(sum, part, me, 256) / count;
  for (uint k = i; k < n; k += 256u * G) squares += (adv[k] - mean) * (adv[k] - mean);
  squares = block_sum(squares, part, me, 256);
  if (me == 0) {
    moments[block] = count;
    moments[G + block] = mean;
    moments[2u * G + block] = squares;
  }
}

KERNEL loss<Low, HEADS, MASKED>: Low y logstd, float actions, uint8_t masks, float old_logprob old_value adv weight moments
  ent_coef scale settings{ratio_low ratio_high clip vf_clip vf_coef} limit, int sizes shape{n A G R}
  -> Low dy, float ratio value partial {
  SHARED float part[6 * 256];
  uint n = (uint)shape.n, A = (uint)shape.A, G = (uint)shape.G, R = (uint)shape.R;
  bool live = G == 0;
  float mean = 0.0f, deviation = 1.0f;  // mean and standard deviation of the advantages
  if (!live) spread_of(moments, n, G, R, part, me, 256u, mean, deviation);
  SampleSums sums = {};
  float by_logprob = 0.0f;
  if (i < n) {
    float log_sums[HEADS + 1], entropies[HEADS + 1];  // + 1, because an array can't be empty
    IN_DEVICE const uint8_t* legal = masks + (MASKED ? i * A : 0);
    float logprob = logprob_of<MASKED, HEADS>(y + i, legal, actions, sizes, logstd, limit[0], n, A, i, log_sums, entropies);

    float target = adv[i], new_value = (float)y[A * n + i];
    float neg_advantage = live ? -target : -weight[i] * ((target - mean) / (deviation + 1e-8f));
    Targets targets = {old_logprob[i], old_value[i], neg_advantage, live ? new_value : old_value[i], target};
    PPOCoefficients by = {settings.ratio_low, settings.ratio_high, settings.clip, settings.vf_clip, settings.vf_coef, ent_coef[0]};
    PPOTerms terms;
    by_logprob = sample_gradients<Low, MASKED, HEADS>(y + i, dy + i, legal, actions, sizes, n, A, i, logprob, log_sums, entropies,
                                                      targets, by, scale[0] / (float)n, terms, sums);
    ratio[i] = terms.ratio;
    value[i] = new_value;
    for (uint k = 0; HEADS == 0 && k < A; ++k) {
      float distance = distance_of(actions[i * A + k], (float)y[k * n + i], limit[0], (float)logstd[k]);
      dy[k * n + i] = (Low)(by_logprob * distance * exp(-(float)logstd[k]));
    }
  }
  block_sums<6>(sums.of, part, me, 256);
#pragma unroll
  for (int row = 0; row < (HEADS > 0 ? 6 : 5); ++row)
    if (me == 0) partial[(uint)row * blocks_of(n) + block] = sums.of[row];
  for (uint k = 0; HEADS == 0 && k < A; ++k) {
    float slope = 0.0f;
    if (i < n)
      slope = by_logprob * normal_by_logstd(distance_of(actions[i * A + k], (float)y[k * n + i], limit[0], (float)logstd[k]));
    slope = block_sum(slope, part, me, 256);
    if (me == 0) partial[(5u + k) * blocks_of(n) + block] = slope;
  }
}

// Compute the scaled loss (1,) and the metrics (7,) in the order of METRICS in ppo/loss.py. For continuous actions, also compute the
// gradient with respect to logstd (1, A). Their entropy is the same for all samples.
KERNEL finish_loss<Low, HEADS>:
  float partial, Low logstd, float ent_coef scale settings{ratio_low ratio_high clip vf_clip vf_coef}, int shape{n A G R}
  -> float total metrics, Low dlogstd {
  SHARED float part[6 * 256];
  uint n = (uint)shape.n, A = (uint)shape.A;
  SampleSums sums;
#pragma unroll
  for (uint row = 0; row < 6u; ++row) {
    sums.of[row] = 0.0f;
    for (uint b = me; row < (HEADS > 0 ? 6u : 5u) && b < blocks_of(n); b += 256u) sums.of[row] += partial[row * blocks_of(n) + b];
  }
  block_sums<6>(sums.of, part, me, 256);
#pragma unroll
  for (int row = 0; row < 6; ++row) sums.of[row] /= (float)n;
  for (uint k = 0; HEADS == 0 && k < A; ++k) {
    sums.of[5] += normal_entropy((float)logstd[k]);
    float slope = 0.0f;
    for (uint b = me; b < blocks_of(n); b += 256u) slope += partial[(5u + k) * blocks_of(n) + b];
    slope = block_sum(slope, part, me, 256);
    if (me == 0) dlogstd[k] = (Low)(slope - ent_coef[0] * scale[0]);
  }
  PPOCoefficients by = {settings.ratio_low, settings.ratio_high, settings.clip, settings.vf_clip, settings.vf_coef, ent_coef[0]};
  if (me == 0) total[0] = write_metrics(sums, by, metrics) * scale[0];
}
