// First part of a backward kernel: see start.metal.h.
#include "recurrence/start.metal.h"
  SHARED Rows<R> after[N * U];  // gradient by the products of the step after
  float carry[C][R], sums[C][R];
#pragma unroll
  for (int v = 0; v < C * R; ++v) carry[v / R][v % R] = 0.0f;
  for (uint k = me; k < N * U; k += THREADS) {
    for (int r = 0; r < R; ++r) after[k].of[r] = 0.0f;
  }
