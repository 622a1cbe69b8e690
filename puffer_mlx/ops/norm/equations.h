// RMSNorm's scale, for CPUs and GPUs: see ops/portable.h.

#pragma once

#include "ops/portable.h"

namespace puffer {

// 1 / sqrt(mean square + epsilon) of a row of H numbers, from its sum of squares.
FUNCTION float inverse_rms(float squares, float H, float epsilon) { return 1.0f / sqrt(squares / H + epsilon); }

}  // namespace puffer
