// Kernel that samples actions from a policy's outputs. policy/choosing_on_gpu.py launches it.

#pragma once

#include "distributions.h"
#include "gpu/functions.metal.h"

// Logits of one action head for one agent, in the interface of distributions.h. Adjacent logits are n elements apart. `at` replaces
// infinities and NaN, and returns -1e4 for illegal actions.
template <int MASKED>
struct LogitsOfRow {
  IN_DEVICE const float* logits;
  IN_DEVICE const uint8_t* mask;
  uint n;

  FUNCTION float at(int k) const { return legal(k) ? finite(logits[(uint)k * n]) : -1e4f; }
  FUNCTION void set(int, float) const {}
  FUNCTION bool masked() const { return MASKED > 0; }
  FUNCTION bool legal(int k) const { return MASKED == 0 || mask[k] != 0; }
  FUNCTION float keep(int, float e) const { return e; }
  FUNCTION float weight(int, float x) const { return exp(x); }
};

// Each thread chooses the actions of one agent. Inputs: outputs (A, n), logits or means; masks (n, A), read if MASKED; noise (n,
// heads); sizes, the number of choices of each of HEADS discrete heads. For continuous actions HEADS is 0, logstd is (A,), and
// actions are clipped to ±limit if limit > 0. Output: chosen (heads + 2, n): actions, their log-probability, and the values.
KERNEL choose_actions<HEADS, MASKED>: float outputs values noise logstd limit, uint8_t masks, int sizes shape{n A} -> float chosen {
  uint n = (uint)shape.n, A = (uint)shape.A, heads = HEADS > 0 ? (uint)HEADS : A, at = 0;
  if (i < n) {
    float logprob = 0.0f;
    for (uint head = 0; head < heads; ++head) {
      float action, head_logprob;
      if (HEADS > 0) {
        LogitsOfRow<MASKED> logits = {outputs + at * n + i, masks + (MASKED ? i * A + at : 0), n};
        categorical_draw(logits, sizes[head], noise[i * heads + head], action, head_logprob);
        at += (uint)sizes[head];
      } else {
        float s = logstd[head];
        normal_draw(outputs[head * n + i], noise[i * heads + head], limit[0], s, exp(s), exp(-s), action, head_logprob);
      }
      chosen[head * n + i] = action;
      logprob += head_logprob;
    }
    chosen[heads * n + i] = logprob;
    chosen[(heads + 1) * n + i] = values[i];
  }
}
