// Kernels that pack up to 24 arrays into one.
//
// `pack` also computes sums of squares. Its result begins with the `before` numbers that earlier launches packed. places: start and
// size of each array; an unused array starts at the end. Gaps are filled with zeros. A block writes 1024 numbers and the sum of their
// squares.

#pragma once

#include "gpu/block_sum.metal.h"

#define FROM(n) case n: x = (float)a##n[k]; break;
#define FOUR_FROM(n) case n: for (int v = 0; v < 4; ++v) if (k + 256 * v < size) x[v] = (float)a##n[k + 256 * v]; break;
#define EACH(OF)                                                                      \
  OF(0) OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7)                                     \
  OF(8) OF(9) OF(10) OF(11) OF(12) OF(13) OF(14) OF(15)                               \
  OF(16) OF(17) OF(18) OF(19) OF(20) OF(21) OF(22) OF(23)
// Load four numbers k, k + 256, ... of one array at once.
#define FOUR float x[4] = {0.0f, 0.0f, 0.0f, 0.0f}; switch (array) { EACH(FOUR_FROM) }

KERNEL pack:
  int sizes{total before} places, float before a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22 a23
  -> float packed squares {
  SHARED float part[4 * 256];
  int array = 0, first = (int)block * 1024;
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  while (array < 23 && first >= places[2 + 2 * array]) ++array;
  if (first >= sizes.before && first + 1024 <= sizes.total && (array == 23 || first + 1024 <= places[2 + 2 * array])) {
    int k = first + (int)me - places[2 * array], size = places[1 + 2 * array];
    FOUR
    for (int n = 0; n < 4; ++n) {
      packed[first + n * 256 + (int)me] = x[n];
      sums[n] = x[n] * x[n];
    }
  } else {
    array = 0;
    for (int n = 0; n < 4; ++n) {
      int e = first + n * 256 + (int)me;
      if (e < sizes.total) {
        float x = 0.0f;
        if (e < sizes.before) {
          x = before[e];
        } else {
          while (array < 23 && e >= places[2 + 2 * array]) ++array;
          int k = e - places[2 * array];
          if (k < places[1 + 2 * array]) {
            switch (array) { EACH(FROM) }
          }
        }
        packed[e] = x;
        sums[n] = x * x;
      }
    }
  }
  block_sums<4>(sums, part, me, 256);
  if (me == 0) squares[block] = ((sums[0] + sums[1]) + sums[2]) + sums[3];
}

// `pack_as` packs into an array of another type, in which each array starts at a multiple of 1024. places: start and size of each array.
KERNEL pack_as<Low>: int places, float a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22 a23
  -> Low packed {
  int array = 0, first = (int)block * 1024 + (int)me;
  while (array < 23 && (int)block * 1024 >= places[2 + 2 * array]) ++array;
  int k = first - places[2 * array], size = places[1 + 2 * array];
  FOUR
  for (int n = 0; n < 4; ++n) packed[first + n * 256] = (Low)x[n];
}
