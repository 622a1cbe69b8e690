// What becomes of the blocks of a minibatch's gradients: minibatch.kernel.h.

#pragma once

#include "../closed_form/sample.metal.h"

// The sum of the blocks' gradients, (P,), and the metrics of their loss (7). shape: P, n, and how many blocks' losses and
// gradients there are.
KERNEL add_blocks: float grads partial ent_coef settings, int shape -> float sum metrics {
  SHARED float part[6 * 256];
  uint P = (uint)shape[0], count = (uint)shape[2], parts = (uint)shape[3];
  if (i < P) {
    float total = 0.0f;
#pragma unroll 8
    for (uint b = 0; b < parts; ++b) total += grads[b * P + i];
    sum[i] = total;
  }
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
  for (uint row = 0; row < 6; ++row) means.of[row] /= (float)shape[1];
  if (me == 0) write_metrics(means, settings[3], ent_coef[0], metrics);
}
