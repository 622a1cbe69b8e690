// Exact GELU, a number to a thread. sizes: how many.

#pragma once

#include "gpu/functions.metal.h"

template <typename Low>
kernel void gelu_forward(device const Low* x, device const int* sizes, device Low* y, uint i) {
  if (i < (uint)sizes[0]) {
    float v = (float)x[i], a = v < 0.0f ? -v : v;
    y[i] = (Low)((v < 0.0f ? 0.0f : v) - (a > 13.0f ? 0.0f : a * normal_tail(v)));
  }
}

template <typename Low>
kernel void gelu_backward(device const Low* x, device const Low* dy, device const int* sizes, device Low* dx, uint i) {
  if (i < (uint)sizes[0]) {
    float v = (float)x[i], a = v < 0.0f ? -v : v;
    float bell = a > 13.0f ? 0.0f : 0.398942280f * a * exp(-0.5f * v * v) - normal_tail(v);
    dx[i] = (Low)((float)dy[i] * (v < 0.0f ? -bell : 1.0f + bell));
  }
}
