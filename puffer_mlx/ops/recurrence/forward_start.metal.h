// First part of a forward kernel: see start.metal.h.
#include "recurrence/start.metal.h"
  SHARED Rows<R> before[2][N * U];  // keep h of the step before; two, so that one barrier does
  for (uint k = me; k < N * U; k += THREADS) {
    for (int r = 0; r < R; ++r) {
      uint s = first + r;
      before[0][k].of[r] = s < S && k < H ? keep[s * keep_step] * h0[(s * H + k) * first_step] : 0.0f;
      before[1][k].of[r] = 0.0f;
    }
  }
