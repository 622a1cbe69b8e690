// Advantages (T, N) in one walk back through time: formulas and what arrives when in `ppo/advantage.py`. A thread owns
// one agent. A step takes a few operations and waits for its numbers much longer: those of AHEAD steps are asked for
// before the first is used.

#pragma once

#include "advantages/step.metal.h"

// values, rewards, terminals, ratios, finals (T, N). Without last observations, what is given as finals isn't read;
// without ratios, what is given as them isn't: they are 1.
KERNEL advantages<Low>: Low values, float rewards terminals ratios finals, int sizes, float settings -> float adv {
  constexpr int AHEAD = 16;
  int T = sizes[0];
  uint N = (uint)sizes[1];
  bool has_finals = sizes[3] != 0, has_ratios = sizes[5] != 0;
  Discounts by = {settings[0], settings[1], settings[2], settings[3], settings[4], sizes[2] != 0, sizes[4] != 0};
  if (i < N) {
    uint last = (uint)(T - 1) * N + i;
    float a = 0.0f, next_value = (float)values[last], next_final = has_finals ? finals[last] : 0.0f;
    adv[last] = a;
    for (int top = T - 2; top >= 0; top -= AHEAD) {
      float value[AHEAD], ratio[AHEAD], reward[AHEAD], terminal[AHEAD], final_[AHEAD];
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        uint k = (uint)(top > j ? top - j : 0) * N + i;
        value[j] = (float)values[k];
        ratio[j] = has_ratios ? ratios[k] : 1.0f;
        reward[j] = rewards[k + N];
        terminal[j] = terminals[k + N];
        final_[j] = has_finals ? finals[k] : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < AHEAD; ++j) {
        if (top < j) continue;
        AdvantageStep step = advantage_step(by, value[j], next_value, ratio[j], reward[j], terminal[j], final_[j], next_final);
        a = discounted(step.delta, step.decay, a);
        adv[(uint)(top - j) * N + i] = a;
        next_value = value[j];
        next_final = final_[j];
      }
    }
  }
}
