// One step of the backward recursion of advantages in a kernel. Formulas and the timing of rewards: ppo/advantage.py.

#pragma once

#include "advantages/step.h"
#include "gpu/functions.metal.h"

// A run's coefficients. within_rho: rho also multiplies the reward (V-trace). bootstrap: the value of a truncated episode's final
// observation counts.
struct Discounts {
  float gamma, gamma_lambda, rho_clip, c_clip, reward_clip;
  bool within_rho, bootstrap;
};

// Terms of adv[t] = delta + decay * adv[t + 1].
struct AdvantageStep {
  float delta, decay;
};

// Compute the terms of step t. reward, terminal, next_value and next_final are of step t + 1. NaN stays NaN, unlike with a GPU's min
// and max.
FUNCTION AdvantageStep advantage_step(IN_THREAD const Discounts& by, float value, float next_value, float ratio, float reward,
                                      float terminal, float final_, float next_final) {
  float rho = ratio > by.rho_clip ? by.rho_clip : ratio, c = ratio > by.c_clip ? by.c_clip : ratio;
  float r = reward > by.reward_clip ? by.reward_clip : reward < -by.reward_clip ? -by.reward_clip : reward;
  bool over = by.bootstrap ? next_final == 1.0f : next_final > 0.0f;
  float not_done = over ? 0.0f : 1.0f - terminal;
  float target = by.gamma * next_value * not_done - value;
  float delta = by.within_rho ? rho * (r + target) : rho * r + target;
  return {final_ > 0.0f ? 0.0f : delta, by.gamma_lambda * c * not_done};
}
