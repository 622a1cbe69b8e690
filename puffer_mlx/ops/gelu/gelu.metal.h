// Exact GELU, one number per thread. sizes: the count.

#pragma once

#include "activation.h"

KERNEL gelu_forward<Low>: Low x, int sizes -> Low y {
  if (i < (uint)sizes[0]) y[i] = (Low)gelu<float>((float)x[i]);
}

KERNEL gelu_backward<Low>: Low x dy, int sizes -> Low dx {
  if (i < (uint)sizes[0]) dx[i] = (Low)((float)dy[i] * gelu_slope<float>((float)x[i]));
}
