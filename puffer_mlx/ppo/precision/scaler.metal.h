// The state of loss scaling after a minibatch: what is computed, __init__.py. One thread.
//
// limits: the smallest scale and the largest. growth: whether there is a scale, and the minibatches after which it grows.

#pragma once

kernel void next_scaler(device const float* scale, device const int* good, device const int* skipped,
                        device const int* in_a_row, device const int* longest, device const float* ok,
                        device const float* limits, device const int* growth, device float* next_scale,
                        device int* next_good, device int* next_skipped, device int* next_in_a_row,
                        device int* next_longest, uint i) {
  if (i == 0) {
    bool counts = ok[0] > 0.0f;
    int fine = counts ? good[0] + 1 : 0, row = counts ? 0 : in_a_row[0] + 1;
    float now = scale[0];
    if (growth[0] > 0) {
      bool grows = fine >= growth[1];
      float grown = 2.0f * now < limits[1] ? 2.0f * now : limits[1];
      float smaller = 0.5f * now > limits[0] ? 0.5f * now : limits[0];
      now = counts ? (grows ? grown : now) : smaller;
      fine = grows ? 0 : fine;
    }
    next_scale[0] = now;
    next_good[0] = fine;
    next_skipped[0] = skipped[0] + (counts ? 0 : 1);
    next_in_a_row[0] = row;
    next_longest[0] = row > longest[0] ? row : longest[0];
  }
}
