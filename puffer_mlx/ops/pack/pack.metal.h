// Up to 24 arrays one after the other, behind those of a launch before, with sums of squares.
//
// places: how many numbers there are in the end, how many of them are `before`, and of each array where it begins and its
// size; arrays that aren't there begin at the end. Between two arrays there are zeros. A block makes 1024 numbers, and the
// sum of their squares.

#pragma once

#include "gpu/block_sum.metal.h"

#define FROM(n) case n: x = (float)a##n[k]; break;
#define FROM_ALL                                                                      \
  FROM(0) FROM(1) FROM(2) FROM(3) FROM(4) FROM(5) FROM(6) FROM(7)                     \
  FROM(8) FROM(9) FROM(10) FROM(11) FROM(12) FROM(13) FROM(14) FROM(15)               \
  FROM(16) FROM(17) FROM(18) FROM(19) FROM(20) FROM(21) FROM(22) FROM(23)

KERNEL pack: int places, float before a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22 a23
  -> float packed squares {
  SHARED float part[256];
  int array = 0;
  float sum = 0.0f;
  for (int n = 0; n < 4; ++n) {
    int e = (int)(block * 1024 + n * 256 + me);
    if (e < places[0]) {
      float x = 0.0f;
      if (e < places[1]) {
        x = before[e];
      } else {
        while (array < 23 && e >= places[4 + 2 * array]) ++array;
        int k = e - places[2 + 2 * array];
        if (k < places[3 + 2 * array]) {
          switch (array) { FROM_ALL }
        }
      }
      packed[e] = x;
      sum += x * x;
    }
  }
  sum = block_sum(sum, part, me, 256);
  if (me == 0) squares[block] = sum;
}

// Up to 24 arrays in another type, each at a multiple of 1024 numbers; where it begins and its size are in `places`, as above
// but for the first two.
#define CAST(type)                                                                    \
  int array = 0;                                                                      \
  while (array < 23 && (int)block * 1024 >= places[2 + 2 * array]) ++array;           \
  for (int n = 0; n < 4; ++n) {                                                       \
    int e = (int)(block * 1024 + n * 256 + me), k = e - places[2 * array];            \
    float x = 0.0f;                                                                   \
    if (k < places[1 + 2 * array]) switch (array) { FROM_ALL }                        \
    packed[e] = (type)x;                                                              \
  }

KERNEL cast_to_low<Low>: int places, float a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22
  a23 -> Low packed {
  CAST(Low)
}

KERNEL cast_to_float<Low>: int places, Low a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22
  a23 -> float packed {
  CAST(float)
}
