// Advantages (T, N) in one walk back through time: formulas and what arrives when in `ppo/advantage.py`. A thread owns
// one agent. A step takes a few operations and waits for its numbers much longer: those of AHEAD steps are asked for
// before the first is used.

#pragma once

#include "advantages/step.h"
#include "gpu/functions.metal.h"

// values, rewards, terminals, ratios, finals (T, N). Without last observations, what is given as finals isn't read;
// without ratios, what is given as them isn't: they are 1.
KERNEL advantages<Low>: Low values, float rewards terminals ratios finals, int sizes, float settings -> float adv {
  constexpr int AHEAD = 16;
  int T = sizes[0];
  uint N = (uint)sizes[1];
  bool within_rho = sizes[2] != 0, has_finals = sizes[3] != 0, bootstrap = sizes[4] != 0, has_ratios = sizes[5] != 0;
  float gamma = settings[0], gamma_lambda = settings[1], rho_clip = settings[2], c_clip = settings[3];
  float reward_clip = settings[4];
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
        // Clips let NaN through, unlike a GPU's min and max.
        float rho = ratio[j] > rho_clip ? rho_clip : ratio[j], c = ratio[j] > c_clip ? c_clip : ratio[j];
        float r = reward[j] > reward_clip ? reward_clip : reward[j] < -reward_clip ? -reward_clip : reward[j];
        bool over = bootstrap ? next_final == 1.0f : next_final > 0.0f;
        float going = over ? 0.0f : 1.0f - terminal[j];
        float target = gamma * next_value * going - value[j];
        float delta = within_rho ? rho * (r + target) : rho * r + target;
        a = discounted(final_[j] > 0.0f ? 0.0f : delta, gamma_lambda * c * going, a);
        adv[(uint)(top - j) * N + i] = a;
        next_value = value[j];
        next_final = final_[j];
      }
    }
  }
}
