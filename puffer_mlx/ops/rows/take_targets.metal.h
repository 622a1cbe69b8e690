// Gather the targets of a minibatch: logprobs, values, adv (T, N), rows and importance weights (S,) -> four arrays (T, S). A thread
// handles one step of one segment. Where final_observations (T, N) > 0, the observation is an episode's last one and its action was never
// taken, so the step gets weight 0; if has_final is 0, final_observations isn't read. moments (3, G): count, mean and squared deviations
// of each block's advantages.

#pragma once

#include "gpu/block_sum.metal.h"

KERNEL take_targets: float logprobs values adv final_observations, int rows, float weights, int sizes{T S N has_final}
  -> float old_logprob old_value taken_adv weight moments {
  SHARED float part[256];
  uint T = (uint)sizes.T, S = (uint)sizes.S, G = (T * S + 255u) / 256u;
  float counted = 0.0f, own_advantage = 0.0f;  // of this thread's step; 0 for a thread without one
  if (i < T * S) {
    uint s = i % S;
    int row = rows[s];  // outside [0, N): row 0 or N - 1, as `take_rows`
    row = row < 0 ? 0 : row < sizes.N ? row : sizes.N - 1;
    uint k = i / S * (uint)sizes.N + (uint)row;
    float logprob = logprobs[k], value = values[k], advantage = adv[k];
    float is_final = sizes.has_final != 0 ? final_observations[k] : 0.0f;
    float importance = weights[s];
    old_logprob[i] = logprob;
    old_value[i] = value;
    taken_adv[i] = advantage;
    weight[i] = is_final > 0.0f ? 0.0f : importance;
    counted = 1.0f;
    own_advantage = advantage;
  }
  float count = block_sum(counted, part, me, 256), mean = block_sum(own_advantage, part, me, 256) / count;
  float squares = block_sum(counted * (own_advantage - mean) * (own_advantage - mean), part, me, 256);
  if (me == 0) {
    moments[block] = count;
    moments[G + block] = mean;
    moments[2u * G + block] = squares;
  }
}
