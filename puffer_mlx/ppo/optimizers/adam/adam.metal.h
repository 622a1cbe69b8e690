// Adam with the clip, for all tensors of a network at once. Equations: __init__.py.
//
// Tensors are packed flat, each starting at a multiple of 1024; a block updates 1024 numbers. packed: all weights, then all
// gradients, first and second moments; squares: sum of squares of each 1024 of them.

#pragma once

#include "../step.metal.h"

// 1 - beta^step, accurate in float even for beta close to 1.
FUNCTION float correction(float log_beta, float step) {
  float y = step * log_beta;
  float series = 1.0f;
  for (int n = 9; n > 1; --n) series = 1.0f + y / (float)n * series;
  return y > -0.5f ? -y * series : 1.0f - exp(y);
}

KERNEL adam_step: int blocks, float packed squares steps settings{beta1 beta2 log_beta1 log_beta2 eps decay max_norm} loss lr -> float weights momentum second_moment step ok {
  SHARED float part[256];
  uint count = (uint)blocks[0], all = 1024 * count;
  Clip clip = clip_of(squares + count, count, loss[0], settings.max_norm, part, me);
  float t = steps[0] + 1.0f;
  if (block == 0 && me == 0) {
    ok[0] = clip.ok ? 1.0f : 0.0f;
    step[0] = clip.ok ? t : steps[0];
  }
  float beta1 = settings.beta1, beta2 = settings.beta2, decayed = 1.0f - lr[0] * settings.decay;
  float rate = lr[0] / correction(settings.log_beta1, t), root = 1.0f / sqrt(correction(settings.log_beta2, t));
  AdamStep by = {clip.scale, beta1, beta2, 1.0f - beta1, 1.0f - beta2, decayed, rate, root, settings.eps};
  for (uint n = 0; n < 4; ++n) {
    uint e = block * 1024 + n * 256 + me;
    float w = packed[e], m = packed[2 * all + e], v = packed[3 * all + e];
    if (clip.ok) adam_move(by, packed[all + e], w, m, v);
    weights[e] = w;
    momentum[e] = m;
    second_moment[e] = v;
  }
}
