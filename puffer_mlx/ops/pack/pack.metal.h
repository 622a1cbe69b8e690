// Up to 24 arrays one after the other, behind those of a launch before, with sums of squares.
//
// places: how many numbers there are in the end, how many of them are `before`, and of each array where it begins and its
// size; arrays that aren't there begin at the end. Between two arrays there are zeros. A block makes 1024 numbers, and the
// sum of their squares.

#pragma once

#include "gpu/block_sum.metal.h"

kernel void pack(device const int* places, device const float* before,
                 device const float* a0, device const float* a1, device const float* a2, device const float* a3,
                 device const float* a4, device const float* a5, device const float* a6, device const float* a7,
                 device const float* a8, device const float* a9, device const float* a10, device const float* a11,
                 device const float* a12, device const float* a13, device const float* a14, device const float* a15,
                 device const float* a16, device const float* a17, device const float* a18, device const float* a19,
                 device const float* a20, device const float* a21, device const float* a22, device const float* a23,
                 device float* packed, device float* squares, uint block, uint me) {
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
          switch (array) {
            case 0: x = a0[k]; break;
            case 1: x = a1[k]; break;
            case 2: x = a2[k]; break;
            case 3: x = a3[k]; break;
            case 4: x = a4[k]; break;
            case 5: x = a5[k]; break;
            case 6: x = a6[k]; break;
            case 7: x = a7[k]; break;
            case 8: x = a8[k]; break;
            case 9: x = a9[k]; break;
            case 10: x = a10[k]; break;
            case 11: x = a11[k]; break;
            case 12: x = a12[k]; break;
            case 13: x = a13[k]; break;
            case 14: x = a14[k]; break;
            case 15: x = a15[k]; break;
            case 16: x = a16[k]; break;
            case 17: x = a17[k]; break;
            case 18: x = a18[k]; break;
            case 19: x = a19[k]; break;
            case 20: x = a20[k]; break;
            case 21: x = a21[k]; break;
            case 22: x = a22[k]; break;
            case 23: x = a23[k]; break;
          }
        }
      }
      packed[e] = x;
      sum += x * x;
    }
  }
  sum = block_sum(sum, part, me, 256);
  if (me == 0) squares[block] = sum;
}
