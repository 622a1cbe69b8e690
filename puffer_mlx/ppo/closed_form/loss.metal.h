// PPO's loss and its gradients by closed form: ppo/loss.py of the distributions of policy/distributions.py.
//
// n samples, one to a thread, in blocks of 256. y (A + 1, n) is the decoder's product: logits or means, and the value in
// the last row. actions are (n, heads), masks (n, A); sizes are those of a discrete space's HEADS; shape is n, A (a
// continuous space's number of dimensions), G, the parts that advantages are summed in, and R, the minibatches of n samples
// that they are normalised together with, this one included; moments are (R, 3, G). G is 0 where advantages are of the
// values in y, and count as they are, so that moments and weight aren't read. settings are 1 - clip_coef, 1 + clip_coef,
// clip_coef, vf_coef and vf_clip_coef. Gradients are those of scale times the loss. What is summed over the samples has a
// row in `partial`, and in that a number for each block; the order of a sum doesn't depend on when its blocks run.
//
// Gradients at corners are MLX's: `maximum` gives a tie's to the unclipped branch, `clip` lets none pass at its bounds.

#pragma once

#include "categorical.h"
#include "gpu/block_sum.metal.h"
#include "gpu/functions.metal.h"
#include "terms.h"

#define HALF_LOG_TWO_PI 0.9189385332f

// A head's logits, rows apart; nothing is kept.
template <class Low, bool MASKED>
struct ColumnOfLogits {
  IN_DEVICE const Low* logits;
  IN_DEVICE const uint8_t* masks;
  uint n;

  FUNCTION float at(uint k) const { return legal(k) ? (float)logits[k * n] : -1e4f; }
  FUNCTION bool legal(uint k) const { return !MASKED || masks[k] != 0; }
  FUNCTION float keep(uint, float e) const { return e; }
  FUNCTION float share(uint, float logp, float) const { return exp(logp); }
  FUNCTION float probability(uint, float logp) const { return exp(logp); }
};

FUNCTION uint blocks_of(uint n) { return (n + 255u) / 256u; }

// Of each part of the advantages (n), a block: how many they are, their mean, and the sum of squares about it: (3, G).
// shape is n and G.
kernel void advantage_moments(device const float* adv, device const int* shape, device float* moments, uint i, uint me,
                              uint block) {
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

template <typename Low, int HEADS>
kernel void categorical_loss(device const Low* y, device const float* actions, device const float* old_logprob,
                             device const float* old_value, device const float* adv, device const float* weight,
                             device const float* moments, device const float* ent_coef, device const float* scale,
                             device const float* settings, device const int* sizes, device const int* shape,
                             device Low* dy, device float* ratio, device float* value, device float* partial, uint i,
                             uint me, uint block) {
#define LOGITS(first) ColumnOfLogits<Low, false> logits = {y + (first) * n + i, nullptr, n}
#include "categorical_loss.metal.h"
#undef LOGITS
}

template <typename Low, int HEADS>
kernel void masked_categorical_loss(device const Low* y, device const float* actions, device const uint8_t* masks,
                                    device const float* old_logprob, device const float* old_value,
                                    device const float* adv, device const float* weight, device const float* moments,
                                    device const float* ent_coef, device const float* scale,
                                    device const float* settings, device const int* sizes, device const int* shape,
                                    device Low* dy, device float* ratio, device float* value, device float* partial,
                                    uint i, uint me, uint block) {
#define LOGITS(first) ColumnOfLogits<Low, true> logits = {y + (first) * n + i, masks + i * A + (first), n}
#include "categorical_loss.metal.h"
#undef LOGITS
}

template <typename Low>
kernel void gaussian_loss(device const Low* y, device const Low* logstd, device const float* actions,
                          device const float* limit, device const float* old_logprob, device const float* old_value, device const float* adv,
                          device const float* weight, device const float* moments, device const float* scale,
                          device const float* settings, device const int* shape, device Low* dy, device float* ratio,
                          device float* value, device float* partial, uint i, uint me, uint block) {
#include "start.metal.h"
  float by_logprob = 0.0f;
  if (i < n) {
#include "gaussian.metal.h"
#include "terms.metal.h"
    by_logprob = each * terms.by_logprob;
    for (uint k = 0; k < A; ++k) dy[k * n + i] = (Low)(by_logprob * DISTANCE(k) * exp(-(float)logstd[k]));
  }
#include "end.metal.h"
  for (uint k = 0; k < A; ++k) {
    float slope = 0.0f;
    if (i < n) slope = by_logprob * (DISTANCE(k) * DISTANCE(k) - 1.0f);
    slope = block_sum(slope, part, me, 256);
    if (me == 0) partial[(5u + k) * blocks_of(n) + block] = slope;
  }
#undef DISTANCE
}

// Of a discrete space: the scaled loss (1) and the metrics (7)
kernel void finish_categorical_loss(device const float* partial, device const float* ent_coef, device const float* scale,
                                    device const float* settings, device const int* shape, device float* total,
                                    device float* metrics, uint me) {
  SHARED float part[256];
  uint n = (uint)shape[0];
#define ENTROPY sums[5]
#define ROWS 6
#include "finish.metal.h"
#undef ENTROPY
#undef ROWS
}

// Of a continuous space, whose entropy is the same for all samples: also the gradient by logstd (1, A)
template <typename Low>
kernel void finish_gaussian_loss(device const float* partial, device const Low* logstd, device const float* ent_coef,
                                 device const float* scale, device const float* settings, device const int* shape,
                                 device float* total, device float* metrics, device Low* dlogstd, uint me) {
  SHARED float part[256];
  uint n = (uint)shape[0], A = (uint)shape[1];
  float entropy = 0.0f;
  for (uint k = 0; k < A; ++k) entropy += 0.5f + HALF_LOG_TWO_PI + (float)logstd[k];
#define ENTROPY entropy
#define ROWS 5
#include "finish.metal.h"
#undef ENTROPY
#undef ROWS
  for (uint k = 0; k < A; ++k) {
    float slope = 0.0f;
    for (uint b = me; b < blocks_of(n); b += 256u) slope += partial[(5u + k) * blocks_of(n) + b];
    slope = block_sum(slope, part, me, 256);
    if (me == 0) dlogstd[k] = (Low)(slope - ent_coef[0] * scale[0]);
  }
}

template <typename Low, int HEADS>
kernel void categorical_logprobs(device const Low* y, device const float* actions, device const int* sizes,
                                 device const int* shape, device float* logprobs, uint i) {
  uint n = (uint)shape[0];
  if (i < n) {
#define LOGITS(first) ColumnOfLogits<Low, false> logits = {y + (first) * n + i, nullptr, n}
#include "categorical.metal.h"
#undef LOGITS
    logprobs[i] = logprob;
  }
}

template <typename Low, int HEADS>
kernel void masked_categorical_logprobs(device const Low* y, device const float* actions, device const uint8_t* masks,
                                        device const int* sizes, device const int* shape, device float* logprobs,
                                        uint i) {
  uint n = (uint)shape[0], A = (uint)shape[1];
  if (i < n) {
#define LOGITS(first) ColumnOfLogits<Low, true> logits = {y + (first) * n + i, masks + i * A + (first), n}
#include "categorical.metal.h"
#undef LOGITS
    logprobs[i] = logprob;
  }
}

template <typename Low>
kernel void gaussian_logprobs(device const Low* y, device const Low* logstd, device const float* actions,
                              device const float* limit, device const int* shape, device float* logprobs, uint i) {
  uint n = (uint)shape[0], A = (uint)shape[1];
  if (i < n) {
#include "gaussian.metal.h"
#undef DISTANCE
    logprobs[i] = logprob;
  }
}
