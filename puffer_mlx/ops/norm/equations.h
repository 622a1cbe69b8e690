// The scale of RMSNorm, for CPUs and GPUs (ops/portable.h).

#pragma once

#include "ops/portable.h"

namespace puffer {

// Return 1 / sqrt(mean square + epsilon) of a row of H numbers, from the sum of their squares.
FUNCTION float inverse_rms(float squares, float H, float epsilon) { return 1.0f / sqrt(squares / H + epsilon); }

}  // namespace puffer
