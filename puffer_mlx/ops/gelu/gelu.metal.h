// Exact GELU of N numbers, one to a thread.

#pragma once

#include "gpu/functions.metal.h"

template <typename Low, int N>
kernel void gelu_forward(device const Low* x, device Low* y, uint i) {
  if (i < (uint)N) {
    float v = (float)x[i], a = v < 0.0f ? -v : v;
    y[i] = (Low)((v < 0.0f ? 0.0f : v) - (a > 13.0f ? 0.0f : a * normal_tail(v)));
  }
}

template <typename Low, int N>
kernel void gelu_backward(device const Low* x, device const Low* dy, device Low* dx, uint i) {
  if (i < (uint)N) {
    float v = (float)x[i], a = v < 0.0f ? -v : v;
    float bell = a > 13.0f ? 0.0f : 0.398942280f * a * exp(-0.5f * v * v) - normal_tail(v);
    dx[i] = (Low)((float)dy[i] * (v < 0.0f ? -bell : 1.0f + bell));
  }
}
