// Probability and importance weight of a drawn segment (ppo/priority.py), for CPUs and GPUs (ops/portable.h).

#pragma once

#include "ops/portable.h"

namespace puffer {

// Sampling weight of a segment whose |advantages| add up to `sum`; 0 if it isn't finite.
FUNCTION float segment_weight(float sum, float alpha) {
  float weight = pow(sum, alpha);
  return weight <= 3.4028234e38f ? weight : 0.0f;
}

FUNCTION float segment_probability(float weight, float total, float epsilon) {
  return (weight + epsilon) / (total + epsilon);
}

// Importance weight of one of N segments drawn with probability p.
FUNCTION float segment_importance(float N, float p, float beta) { return pow(N * p, -beta); }

}  // namespace puffer
