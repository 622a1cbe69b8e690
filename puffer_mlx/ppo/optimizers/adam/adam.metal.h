// Adam with the clip, for all tensors of a network at once: what is computed, __init__.py.
//
// Arrays of all tensors are flat, each tensor at a multiple of 1024, of which a block has one. `packed` has all weights,
// then all gradients, first and second moments; `squares` the sums of squares of each 1024 of them.
//
// settings: both betas and their logarithms, eps, weight decay, the largest norm.

#pragma once

#include "../step.metal.h"
#include "gpu/block_sum.metal.h"

// 1 - beta^step, exact to float's digits where beta is close to 1.
FUNCTION float correction(float log_beta, float step) {
  float y = step * log_beta;
  float series = 1.0f;
  for (int n = 9; n > 1; --n) series = 1.0f + y / (float)n * series;
  return y > -0.5f ? -y * series : 1.0f - exp(y);
}

kernel void adam_step(device const int* blocks, device const float* packed, device const float* squares,
                      device const float* steps, device const float* settings, device const float* loss,
                      device const float* lr, device float* weights, device float* momentum,
                      device float* second_moment, device float* step, device float* ok, uint block, uint me) {
  SHARED float part[256];
  uint count = (uint)blocks[0], all = 1024 * count;
  float total = 0.0f;
  for (uint k = me; k < count; k += 256) total += squares[count + k];
  float norm = sqrt(block_sum(total, part, me, 256)), scale = clip_scale(norm, settings[6]);
  bool good = is_finite(norm) && is_finite(loss[0]);
  float t = steps[0] + 1.0f;
  if (block == 0 && me == 0) {
    ok[0] = good ? 1.0f : 0.0f;
    step[0] = good ? t : steps[0];
  }
  float one = settings[0], two = settings[1];
  float rate = lr[0] / correction(settings[2], t), root = 1.0f / sqrt(correction(settings[3], t));
  for (uint n = 0; n < 4; ++n) {
    uint e = block * 1024 + n * 256 + me;
    float w = packed[e], g = scale * packed[all + e], m = packed[2 * all + e], v = packed[3 * all + e];
    if (good) {
      m = one * m + (1.0f - one) * g;
      v = two * v + (1.0f - two) * (g * g);
      w = w * (1.0f - lr[0] * settings[5]) - rate * m / (root * sqrt(v) + settings[4]);
    }
    weights[e] = w;
    momentum[e] = m;
    second_moment[e] = v;
  }
}
