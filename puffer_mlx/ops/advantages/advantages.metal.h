// Kernel that computes advantages (T, N) backward in time; formulas are in ppo/advantage.py. Each thread computes one agent. Loads
// take much longer than a step's arithmetic, so AHEAD steps are loaded before the first is used.
//
// If S > 0 and ok (1,) is above 0, the values and ratios of a minibatch's segments `rows` are first replaced by new ones (T, S).
// If a segment was drawn twice, the last one counts.

#pragma once

#include "advantages/step.metal.h"

// Return *now if `put`, else *before. For float this selects the address, since two loads into one register wait for each other.
FUNCTION float either(bool put, IN_DEVICE const float* now, IN_DEVICE const float* before) { return *(put ? now : before); }

template <class Low>
FUNCTION float either(bool put, IN_DEVICE const float* now, IN_DEVICE const Low* before) {
  return put ? *now : (float)*before;
}

// values, rewards, terminals, ratios, final_observations (T, N), rows (S,). final_observations is read only if has_final > 0; ratios
// count as 1 if has_ratios is 0. sums (1, N): sum of |advantage| over time. put_values, put_ratios (T, N): updated copies, written if
// S > 0.
KERNEL advantages<Low, THREADS>: Low values, float rewards terminals ratios final_observations, int rows, float new_values
  new_ratios ok, int sizes{T N S within_rho bootstrap has_final has_ratios}, float settings{gamma gamma_lambda rho_clip c_clip
  reward_clip}
  -> float adv sums put_values put_ratios {
  constexpr int AHEAD = 16, LOOKED = 8;
  SHARED int looked[8 * THREADS];
  int T = sizes.T;
  uint N = (uint)sizes.N, S = (uint)sizes.S;
  bool has_final = sizes.has_final != 0, has_ratios = sizes.has_ratios != 0;
  Discounts by = {settings.gamma, settings.gamma_lambda, settings.rho_clip, settings.c_clip, settings.reward_clip,
                  sizes.within_rho != 0, sizes.bootstrap != 0};
  int place = -1;
  for (uint first = 0; first < S; first += LOOKED * THREADS) {
    BARRIER
#pragma unroll
    for (uint s = me; s < LOOKED * THREADS; s += THREADS) looked[s] = first + s < S ? rows[first + s] : -1;
    BARRIER
#pragma unroll 32
    for (uint s = 0; s < LOOKED * THREADS; ++s) place = looked[s] == (int)i ? (int)(first + s) : place;
  }
  bool put = place >= 0 && ok[0] > 0.0f;
  if (i < N) {
    float a = 0.0f, sum = 0.0f, next_value = 0.0f, next_final = 0.0f;
    for (int top = T - 1; top >= 0; top -= AHEAD) {
      float value[AHEAD], ratio[AHEAD], reward[AHEAD], terminal[AHEAD], final_[AHEAD];
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        uint t = (uint)(top > j ? top - j : 0), k = t * N + i, after = t + 1 < (uint)T ? k + N : k, now = put ? t * S + (uint)place : 0;
        value[j] = either(put, new_values + now, values + k);
        ratio[j] = has_ratios || S > 0 ? either(put, new_ratios + now, ratios + k) : 1.0f;
        reward[j] = rewards[after];
        terminal[j] = terminals[after];
        final_[j] = has_final ? final_observations[k] : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        if (top < j) continue;
        uint t = (uint)(top - j), k = t * N + i;
        AdvantageStep step =
          advantage_step(by, value[j], next_value, has_ratios ? ratio[j] : 1.0f, reward[j], terminal[j], final_[j], next_final);
        a = t + 1 < (uint)T ? discounted(step.delta, step.decay, a) : 0.0f;
        adv[k] = a;
        sum += a < 0.0f ? -a : a;
        if (S > 0) {
          put_values[k] = value[j];
          put_ratios[k] = ratio[j];
        }
        next_value = value[j];
        next_final = final_[j];
      }
    }
    sums[i] = sum;
  }
}
