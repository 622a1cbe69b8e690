// Last part of a step: the decoder's outputs of the features x, and what is chosen by them.

#pragma once

#include "distributions.h"
#include "gpu/acting/functions.metal.h"

// An agent's logits in one head, and its legal choices, or null; nothing is remembered.
template <int R>
struct LogitsOfAgent {
  IN_SHARED Rows<R>* logits;
  uint r;
  IN_DEVICE const uint8_t* mask;
  bool some_illegal;

  FUNCTION float at(int k) const { return logits[k].of[r]; }
  FUNCTION void set(int k, float x) const { logits[k].of[r] = x; }
  FUNCTION bool masked() const { return some_illegal; }
  FUNCTION bool legal(int k) const { return mask[k] != 0; }
  FUNCTION float keep(int, float e) const { return e; }
  FUNCTION float weight(int, float x) const { return exp(x); }
};

template <int R, int GROUPS, int THREADS, int SEATS>
FUNCTION void choose(IN_THREAD Step<R, GROUPS, THREADS, SEATS>& step) {
  uint H = step.H, A = step.A, heads = step.heads, me = step.me;
  IN_SHARED Rows<R>* outputs = step.outputs;
  for (uint unit = me; unit < (A + 1) * GROUPS; unit += THREADS) {
    IN_DEVICE const float* weight = step.decoder + unit % (A + 1);
    Sums<1, R> sums = multiply<1, R>(weight, 0, A + 1, step.x + unit / (A + 1) * H, H);
#pragma unroll
    for (int r = 0; r < R; ++r) outputs[unit].of[r] = weight[H * (A + 1)] + sums.of[0][r];
  }
  BARRIER
  if (me < R * GROUPS && step.first + me < step.n) {
    uint agent = step.place(me);
    IN_SHARED Rows<R>* mine = outputs + me / R * (A + 1);
    uint r = me % R, at = 0;
    float limit = (float)step.sizes[12], logprob = 0.0f;
    bool masked = step.sizes[9] > 0;
    for (uint head = 0; head < heads; ++head) {
      int size = step.sizes[14 + head];
      float noise = step.noise[agent * heads + head], action, own;
      if (step.sizes[10] > 0) {
        float logstd = step.logstd[head];
        normal_draw(mine[head].of[r], noise, limit, logstd, exp(logstd), exp(-logstd), action, own);
      } else {
        LogitsOfAgent<R> logits = {mine + at, r, step.mask + (masked ? agent * A + at : 0), masked};
        categorical_draw(logits, size, noise, action, own);
      }
      step.actions[agent * heads + head] = action;
      logprob += own;
      at += (uint)size;
    }
    step.logprobs[agent] = logprob;
    step.values[agent] = mine[A].of[r];
  }
}
