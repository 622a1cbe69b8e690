// Update the state of loss scaling after some minibatches, in one thread. Rules: __init__.py.
//
// ok: one number per minibatch, above 0 if it counted. limits: smallest and largest scale. growth: 1 if there is a scale (fp16),
// minibatches until it grows, length of ok.

#pragma once

#include "counts.h"
#include "gpu/functions.metal.h"

KERNEL next_scaler: float scale, int good skipped in_a_row longest, float ok limits, int growth
  -> float next_scale, int next_good next_skipped next_in_a_row next_longest {
  if (i == 0) {
    int count = good[0], skips = skipped[0], row = in_a_row[0], most = longest[0];
    float now = scale[0];
    for (int k = 0; k < growth[2]; ++k) {
      bool counts = ok[k] > 0.0f;
      Counts next = next_counts({count, skips, row, most}, counts);
      bool grows = growth[0] > 0 && next.good >= growth[1];
      if (growth[0] > 0) {
        float grown = 2.0f * now < limits[1] ? 2.0f * now : limits[1];
        float smaller = 0.5f * now > limits[0] ? 0.5f * now : limits[0];
        now = counts ? (grows ? grown : now) : smaller;
      }
      count = grows ? 0 : next.good, skips = next.skipped, row = next.in_a_row, most = next.longest;
    }
    next_scale[0] = now;
    next_good[0] = count, next_skipped[0] = skips;
    next_in_a_row[0] = row, next_longest[0] = most;
  }
}
