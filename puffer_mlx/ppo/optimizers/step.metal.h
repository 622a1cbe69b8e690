// What the optimizers' kernels share: the clip by the gradients' global norm. What is computed: ppo/finite.py.

#pragma once

#include "gpu/functions.metal.h"

FUNCTION bool is_finite(float x) { return x >= -3.402823466e38f && x <= 3.402823466e38f; }

FUNCTION float clip_scale(float norm, float max_norm) {
  float scale = max_norm / (norm + 1e-6f);
  return scale < 1.0f ? scale : 1.0f;
}
