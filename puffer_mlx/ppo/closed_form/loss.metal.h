// PPO's loss and its gradients by closed form: ppo/loss.py of the distributions of policy/distributions.py.
//
// n samples, one to a thread, in blocks of 256. y (A + 1, n) is the decoder's product: logits or means, and the value in
// the last row. actions are (n, heads), masks (n, A), read if MASKED; sizes are those of a discrete space's HEADS, which
// are 0 of a continuous one: that has logstd (1, A), and means that count as at most `limit` from 0; shape is n, A, G, the
// parts that advantages are summed in, and R, the minibatches of n samples that they are normalised together with, this one
// included; moments are (R, 3, G). G is 0 where advantages are of the values in y, and count as they are, so that moments
// and weight aren't read. settings are 1 - clip_coef, 1 + clip_coef, clip_coef, vf_coef and vf_clip_coef. Gradients are
// those of scale times the loss. What is summed over the samples has a row in `partial`, and in that a number for each
// block; the order of a sum doesn't depend on when its blocks run.

#pragma once

#include "sample.metal.h"

FUNCTION uint blocks_of(uint n) { return (n + 255u) / 256u; }

// Of each part of the advantages (n), a block: how many they are, their mean, and the sum of squares about it: (3, G).
// shape is n and G.
KERNEL advantage_moments: float adv, int shape -> float moments {
  SHARED float part[256];
  uint n = (uint)shape[0], G = (uint)shape[1];
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
  ent_coef scale settings limit, int sizes shape
  -> Low dy, float ratio value partial {
  SHARED float part[6 * 256];
  uint n = (uint)shape[0], A = (uint)shape[1], G = (uint)shape[2], R = (uint)shape[3];
  bool live = G == 0;
  float mean = 0.0f, deviation = 1.0f;  // of the advantages, the latter unbiased
  if (!live) spread_of(moments, n, G, R, part, me, 256u, mean, deviation);
  SampleSums sums;
#pragma unroll
  for (int row = 0; row < 6; ++row) sums.of[row] = 0.0f;
  float by_logprob = 0.0f;
  if (i < n) {
    float log_sums[HEADS + 1], entropies[HEADS + 1];  // one more, as there is none of no numbers
    IN_DEVICE const uint8_t* legal = masks + (MASKED ? i * A : 0);
    float logprob = of_choices<MASKED, HEADS>(y + i, legal, actions, sizes, n, i, log_sums, entropies);
    if (HEADS == 0) logprob = of_numbers(y + i, actions, logstd, limit[0], n, A, i);

    float each = scale[0] / (float)n, target = adv[i], new_value = (float)y[A * n + i];
    float gain = live ? -target : -weight[i] * ((target - mean) / (deviation + 1e-8f));
    Compared by = {old_logprob[i], old_value[i], gain, live ? new_value : old_value[i], target};
    PPONumbers numbers = {settings[0], settings[1], settings[2], settings[4]};
    PPOTerms terms;
    by_logprob = sample_gradients<Low, MASKED, HEADS>(y + i, dy + i, legal, actions, sizes, n, A, i, logprob, log_sums, entropies,
                                                 by, numbers, settings[3], ent_coef[0], each, terms, sums);
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

// The scaled loss (1), the metrics (7) in the order of METRICS in ppo/loss.py; and of a continuous space, whose entropy is the
// same for all samples, the gradient by logstd (1, A).
KERNEL finish_loss<Low, HEADS>: float partial, Low logstd, float ent_coef scale settings, int shape
  -> float total metrics, Low dlogstd {
  SHARED float part[6 * 256];
  uint n = (uint)shape[0], A = (uint)shape[1];
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
  if (me == 0) total[0] = write_metrics(sums, settings[3], ent_coef[0], metrics) * scale[0];
}
