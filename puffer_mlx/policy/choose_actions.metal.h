// What agents do, by their outputs: policy/choosing_on_gpu.py.

#pragma once

#include "distributions.h"
#include "gpu/functions.metal.h"

// An agent's logits in one head, n apart, and its legal choices; nothing is remembered, as to replace a logit twice is to
// replace it once.
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

// n agents, one to a thread. outputs are logits or means (A, n), masks (n, A), read if MASKED, noise (n, heads); sizes are those
// of a discrete space's HEADS, which are 0 of a continuous one: that has logstd (A), and numbers that are at most `limit`
// from 0, if that is more than 0. shape is n and A. chosen (heads + 2, n): actions, their log-probability, and the values.
KERNEL choose_actions<HEADS, MASKED>: float outputs values noise logstd limit, uint8_t masks, int sizes shape -> float chosen {
  uint n = (uint)shape[0], A = (uint)shape[1], heads = HEADS > 0 ? (uint)HEADS : A, at = 0;
  if (i < n) {
    float logprob = 0.0f;
    for (uint head = 0; head < heads; ++head) {
      float action, own;
      if (HEADS > 0) {
        LogitsOfRow<MASKED> logits = {outputs + at * n + i, masks + (MASKED ? i * A + at : 0), n};
        categorical_draw(logits, sizes[head], noise[i * heads + head], action, own);
        at += (uint)sizes[head];
      } else {
        float s = logstd[head];
        normal_draw(outputs[head * n + i], noise[i * heads + head], limit[0], s, exp(s), exp(-s), action, own);
      }
      chosen[head * n + i] = action;
      logprob += own;
    }
    chosen[heads * n + i] = logprob;
    chosen[(heads + 1) * n + i] = values[i];
  }
}
