// A step of advantages, backward in time: formulas and what arrives when in `ppo/advantage.py`.

#pragma once

#include "advantages/step.h"
#include "gpu/functions.metal.h"

// The numbers that stay the same during a run, and which form is computed.
struct Discounts {
  float gamma, gamma_lambda, rho_clip, c_clip, reward_clip;
  bool within_rho, bootstrap;  // the form V; whether what was truncated goes on
};

// What a step adds to the next step's advantage, and by what that is multiplied.
struct AdvantageStep {
  float delta, decay;
};

// reward, terminal and next_final arrive one step later than value, ratio and this step's `final_`. Clips let NaN through,
// unlike a GPU's min and max.
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
