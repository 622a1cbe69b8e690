// Update the state of loss scaling after n minibatches, in one thread. Rules: __init__.py.
//
// ok (n,): above 0 for a minibatch that counted. interval: minibatches until the scale grows.

#pragma once

#include "counts.h"
#include "gpu/functions.metal.h"

KERNEL next_scaler: float scale, int good skipped in_a_row longest, float ok limits{smallest largest}, int growth{is_scaled interval n}
  -> float next_scale, int next_good next_skipped next_in_a_row next_longest {
  if (i == 0) {
    int count = good[0], skips = skipped[0], row = in_a_row[0], most = longest[0];
    float now = scale[0];
    for (int k = 0; k < growth.n; ++k) {
      bool counts = ok[k] > 0.0f;
      Counts next = next_counts({count, skips, row, most}, counts);
      bool grows = growth.is_scaled > 0 && next.good >= growth.interval;
      if (growth.is_scaled > 0) {
        float grown = 2.0f * now < limits.largest ? 2.0f * now : limits.largest;
        float smaller = 0.5f * now > limits.smallest ? 0.5f * now : limits.smallest;
        now = counts ? (grows ? grown : now) : smaller;
      }
      count = grows ? 0 : next.good, skips = next.skipped, row = next.in_a_row, most = next.longest;
    }
    next_scale[0] = now;
    next_good[0] = count, next_skipped[0] = skips;
    next_in_a_row[0] = row, next_longest[0] = most;
  }
}
