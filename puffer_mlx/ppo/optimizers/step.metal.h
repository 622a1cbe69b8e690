// The clip by the gradients' global norm, for the optimizers' kernels.

#pragma once

#include "equations.h"
#include "gpu/block_sum.metal.h"
#include "gpu/functions.metal.h"

// Return the clip of an optimizer's step, the factor on the gradients, from `count` groups of `each` sums of their squares. All
// threads of a block must call this. Squares is a pointer type in any address space.
template <class Squares>
FUNCTION Clip clip_of(Squares squares, uint count, float loss, float max_norm, IN_SHARED float* part, uint me, uint threads = 256,
                      uint each = 1) {
  float total = 0.0f;
  for (uint k = me; k < count; k += threads) {
    float some = squares[each * k];
    for (uint n = 1; n < each; ++n) some += squares[each * k + n];
    total += some;
  }
  return clip_by(sqrt(block_sum(total, part, me, threads)), loss, max_norm);
}
