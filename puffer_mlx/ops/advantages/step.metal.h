// One step of the advantages' backward recursion. Formulas and the timing of rewards: ppo/advantage.py.

#pragma once

#include "advantages/step.h"
#include "gpu/functions.metal.h"

// Coefficients of a run.
struct Discounts {
  float gamma, gamma_lambda, rho_clip, c_clip, reward_clip;
  bool within_rho, bootstrap;  // clip the reward's term, too (V-trace); continue past a truncation with the value
};

// adv[t] = delta + decay * adv[t + 1]
struct AdvantageStep {
  float delta, decay;
};

// reward, terminal and next_final belong to step t + 1, the other values to step t. Clips keep NaN, unlike a GPU's min and max.
FUNCTION AdvantageStep advantage_step(IN_THREAD const Discounts& by, float value, float next_value, float ratio, float reward,
                                      float terminal, float final_, float next_final) {
  float rho = ratio > by.rho_clip ? by.rho_clip : ratio, c = ratio > by.c_clip ? by.c_clip : ratio;
  float r = reward > by.reward_clip ? by.reward_clip : reward < -by.reward_clip ? -by.reward_clip : reward;
  bool over = by.bootstrap ? next_final == 1.0f : next_final > 0.0f;
  float going = over ? 0.0f : 1.0f - terminal;
  float target = by.gamma * next_value * going - value;
  float delta = by.within_rho ? rho * (r + target) : rho * r + target;
  return {final_ > 0.0f ? 0.0f : delta, by.gamma_lambda * c * going};
}
