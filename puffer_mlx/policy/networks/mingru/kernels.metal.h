// MinGRU: gates, recurrence and highway. Shapes: scan.h.
//
// The gates don't see the state, so one thread owns one channel of one segment and walks through time; neighbouring
// threads read neighbouring numbers.

#pragma once

#include "gpu/functions.metal.h"

template <typename Low, int T, int S, int H>
kernel void mingru_forward(device const Low* u, device const Low* x, device const float* first,
                           device const float* keep, device Low* out, device float* states, uint i) {
  if (i < (uint)(S * H)) {
    float state = first[i];
    uint row = i / H, k = i, j = row * 3 * H + i % H;
    for (int t = 0; t < T; ++t) {
      float hidden = (float)u[j], input = (float)x[k];
      float z = logistic((float)u[j + H]), q = logistic((float)u[j + 2 * H]);
      float g = hidden >= 0.0f ? hidden + 0.5f : logistic(hidden);
      state *= keep[row];
      state += z * (g - state);
      states[k] = state;
      out[k] = (Low)(input + q * (state - input));
      k += S * H; j += 3 * S * H; row += S;
    }
  }
}

template <typename Low, int T, int S, int H>
kernel void mingru_backward(device const Low* u, device const Low* x, device const float* first,
                            device const float* keep, device const float* states, device const Low* dout,
                            device Low* du, device Low* dx, device float* dfirst, uint i) {
  if (i < (uint)(S * H)) {
    float carry = 0.0f;
    uint row = i / H + (uint)(T - 1) * S;
    uint k = i + (uint)(T - 1) * S * H, j = row * 3 * H + i % H;
    for (int t = T - 1; t >= 0; --t) {
      float hidden = (float)u[j], z = logistic((float)u[j + H]), q = logistic((float)u[j + 2 * H]);
      float g = hidden + 0.5f, slope = 1.0f;
      if (hidden < 0.0f) { g = logistic(hidden); slope = g * (1.0f - g); }
      float before = keep[row] * (t > 0 ? states[k - S * H] : first[i]);
      float d = (float)dout[k], ds = carry + d * q;
      du[j] = (Low)(ds * z * slope);
      du[j + H] = (Low)(ds * (g - before) * z * (1.0f - z));
      du[j + 2 * H] = (Low)(d * (states[k] - (float)x[k]) * q * (1.0f - q));
      dx[k] = (Low)(d * (1.0f - q));
      carry = keep[row] * ds * (1.0f - z);
      k -= S * H; j -= 3 * S * H; row -= S;
    }
    dfirst[i] = carry;
  }
}
