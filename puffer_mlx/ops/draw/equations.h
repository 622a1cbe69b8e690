// How likely segments are to be drawn, and what they weigh then: ppo/priority.py. The one text of it in C: see ops/words.h.

#pragma once

#include "ops/words.h"

namespace puffer {

// Of the sum of a segment's |advantages|; a weight that is NaN or infinite counts as 0.
FUNCTION float segment_weight(float sum, float alpha) {
  float weight = pow(sum, alpha);
  return weight <= 3.4028234e38f ? weight : 0.0f;
}

FUNCTION float segment_probability(float weight, float total, float epsilon) {
  return (weight + epsilon) / (total + epsilon);
}

// Of one of N, with that probability.
FUNCTION float segment_importance(float N, float p, float beta) { return pow(N * p, -beta); }

}  // namespace puffer
