// The state of loss scaling after some minibatches: what is computed, __init__.py. One thread.
//
// ok has a number of each minibatch, above 0 if it counted. limits: the smallest scale and the largest. growth: whether there is
// a scale, the minibatches after which it grows, and how many are in ok.

#pragma once

#include "counts.h"
#include "gpu/functions.metal.h"

KERNEL next_scaler: float scale, int good skipped in_a_row longest, float ok limits, int growth
  -> float next_scale, int next_good next_skipped next_in_a_row next_longest {
  if (i == 0) {
    Counts next = {good[0], skipped[0], in_a_row[0], longest[0]};
    float now = scale[0];
    for (int k = 0; k < growth[2]; ++k) {
      bool counts = ok[k] > 0.0f;
      next = next_counts(next, counts);
      if (growth[0] > 0) {
        bool grows = next.good >= growth[1];
        float grown = 2.0f * now < limits[1] ? 2.0f * now : limits[1];
        float smaller = 0.5f * now > limits[0] ? 0.5f * now : limits[0];
        now = counts ? (grows ? grown : now) : smaller;
        next.good = grows ? 0 : next.good;
      }
    }
    next_scale[0] = now;
    next_good[0] = next.good, next_skipped[0] = next.skipped;
    next_in_a_row[0] = next.in_a_row, next_longest[0] = next.longest;
  }
}
