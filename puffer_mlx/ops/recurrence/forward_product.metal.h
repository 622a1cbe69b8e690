// Part of a forward kernel: what the state after this step is multiplied by, and this step's product.
//
// All of a step's numbers are read before any is stored: for all that the compiler knows, a store may change what is
// read after it, and every segment would wait for memory anew.
      float kept[R];  // of the next step
#pragma unroll
      for (int r = 0; r < R; ++r) {
        uint s = first + r;
        kept[r] = s < S && t + 1 < T ? keep[((t + 1) * S + s) * keep_step] : 0.0f;
      }
#define ROWS before[t & 1]
#define SUMS sums[v / R][v % R]
#include "recurrence/product.metal.h"
