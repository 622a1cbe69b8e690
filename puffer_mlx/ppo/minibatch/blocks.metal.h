// Sum the results of all blocks of minibatch.kernel.h or wide.kernel.h.

#pragma once

#include "../closed_form/sample.metal.h"

// Sum the gradients grads (parts, P) over their first dimension. `sum` contains each tensor at a multiple of 1024, with zeros between the
// tensors. `squares` contains the sum of squares of each 256 elements. Compute the metrics (7,) from the sums `partial` of `blocks` blocks.
// places: for each tensor its start in `sum`, its size, and its start in a row of grads.
KERNEL add_blocks:
  float grads partial ent_coef settings{ratio_low ratio_high clip vf_clip vf_coef}, int shape{P n blocks parts tensors} places
  -> float sum metrics squares {
  SHARED float part[6 * 256];
  uint P = (uint)shape.P, count = (uint)shape.blocks, parts = (uint)shape.parts, t = (uint)shape.tensors - 1;
  while (t > 0 && i < (uint)places[3 * t]) --t;
  uint k = i - (uint)places[3 * t], from = k + (uint)places[3 * t + 2];
  float mine = 0.0f;
  if (k < (uint)places[3 * t + 1]) {
#pragma unroll 8
    for (uint b = 0; b < parts; ++b) mine += grads[b * P + from];
  }
  sum[i] = mine;
  float square = block_sum(mine * mine, part, me, 256);
  if (me == 0) squares[block] = square;
  if (block > 0) return;
  SampleSums means;
#pragma unroll
  for (uint row = 0; row < 6; ++row) {
    float total = 0.0f;
    for (uint b = me; b < count; b += 256u) total += partial[row * count + b];
    means.of[row] = total;
  }
  block_sums<6>(means.of, part, me, 256);
#pragma unroll
  for (uint row = 0; row < 6; ++row) means.of[row] /= (float)shape.n;
  PPOCoefficients by = {settings.ratio_low, settings.ratio_high, settings.clip, settings.vf_clip, settings.vf_coef, ent_coef[0]};
  if (me == 0) write_metrics(means, by, metrics);
}
