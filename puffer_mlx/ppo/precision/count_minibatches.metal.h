// Count good and skipped minibatches with one thread, as `count_minibatches` of __init__.py does for fp32 and bf16. ok[k] > 0 if
// minibatch k counted.

#pragma once

#include "gpu/functions.metal.h"

KERNEL count_minibatches: int good skipped in_a_row longest, float ok, int sizes{K}
  -> int next_good next_skipped next_in_a_row next_longest {
  if (i == 0) {
    int count = good[0], skips = skipped[0], row = in_a_row[0], most = longest[0];
    for (int k = 0; k < sizes.K; ++k) {
      bool counted = ok[k] > 0.0f;
      count = counted ? count + 1 : 0;
      skips += counted ? 0 : 1;
      row = counted ? 0 : row + 1;
      most = row > most ? row : most;
    }
    next_good[0] = count;
    next_skipped[0] = skips;
    next_in_a_row[0] = row;
    next_longest[0] = most;
  }
}
