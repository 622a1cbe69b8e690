// Exact GELU, one number per thread.

#pragma once

#include "activation.h"

KERNEL gelu_forward<Low>: Low x, int sizes{n} -> Low y {
  if (i < (uint)sizes.n) y[i] = (Low)gelu<float>((float)x[i]);
}

KERNEL gelu_backward<Low>: Low x dy, int sizes{n} -> Low dx {
  if (i < (uint)sizes.n) dx[i] = (Low)((float)dy[i] * gelu_slope<float>((float)x[i]));
}
