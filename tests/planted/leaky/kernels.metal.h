// Leaky on a GPU: one thread owns one channel of one segment.

#pragma once

#include "gpu/functions.metal.h"

KERNEL leaky_forward<Low, T, S, H>: Low u x, float first not_done -> float states {
  if (i < (uint)(S * H)) {
    float state = first[i];
    uint row = i / H, k = i;
    for (int t = 0; t < T; ++t) {
      state *= not_done[row];
      state += logistic((float)u[k]) * ((float)x[k] - state);
      states[k] = state;
      k += S * H; row += S;
    }
  }
}

KERNEL leaky_backward<Low, T, S, H>: Low u x, float first not_done states dout -> Low du dx, float dfirst {
  if (i < (uint)(S * H)) {
    float carry = 0.0f;
    uint row = i / H + (uint)(T - 1) * S, k = i + (uint)(T - 1) * S * H;
    for (int t = T - 1; t >= 0; --t) {
      float z = logistic((float)u[k]), before = not_done[row] * (t > 0 ? states[k - S * H] : first[i]);
      float ds = carry + dout[k];
      du[k] = (Low)(ds * ((float)x[k] - before) * z * (1.0f - z));
      dx[k] = (Low)(ds * z);
      carry = not_done[row] * ds * (1.0f - z);
      k -= S * H; row -= S;
    }
    dfirst[i] = carry;
  }
}
