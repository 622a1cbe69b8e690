// Sample actions from a policy's outputs. Launched by policy/choosing_on_gpu.py.

#pragma once

#include "distributions.h"
#include "gpu/functions.metal.h"

// Logits of one agent in one head, n apart (see distributions.h). Nothing is cached; `at` sanitizes a logit at each read.
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

// One agent per thread. outputs: logits or means (A, n); masks (n, A), read if MASKED; noise (n, heads); sizes: choices of each of
// the HEADS of a discrete space; HEADS is 0 for a continuous one, with logstd (A) and |action| <= limit if limit > 0. shape: n, A.
// chosen (heads + 2, n): actions, their log-probability, the values.
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
