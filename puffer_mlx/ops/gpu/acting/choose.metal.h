// The end of a policy step: compute the decoder's outputs for the features x, and sample actions.

#pragma once

#include "distributions.h"
#include "gpu/acting/functions.metal.h"

// Logits of one head for one agent, without caches (see distributions.h).
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

// Sample the actions of an agent. Returns their log-probability.
template <int R, class Deviations>
FUNCTION float draw_actions(IN_DEVICE const int* sizes, uint heads, IN_SHARED Rows<R>* outputs, uint r, IN_DEVICE const float* noise,
                            Deviations logstd, IN_DEVICE const uint8_t* mask, IN_DEVICE float* actions) {
  float limit = (float)sizes[ActingSizes::LIMIT], logprob = 0.0f;
  bool masked = sizes[ActingSizes::HAS_MASK] > 0;
  uint at = 0;
  for (uint head = 0; head < heads; ++head) {
    int size = sizes[ActingSizes::CHOICES + head];
    float action, head_logprob;
    if (sizes[ActingSizes::CONTINUOUS] > 0) {
      float s = logstd[head];
      normal_draw(outputs[head].of[r], noise[head], limit, s, exp(s), exp(-s), action, head_logprob);
    } else {
      LogitsOfAgent<R> logits = {outputs + at, r, mask + (masked ? at : 0), masked};
      categorical_draw(logits, size, noise[head], action, head_logprob);
    }
    actions[head] = action;
    logprob += head_logprob;
    at += (uint)size;
  }
  return logprob;
}

template <int R, int GROUPS, int THREADS, int PLAYERS>
FUNCTION void choose(IN_THREAD Step<R, GROUPS, THREADS, PLAYERS>& step) {
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
    uint r = me % R;
    step.logprobs[agent] = draw_actions<R>(step.sizes, heads, mine, r, step.noise + agent * heads, step.logstd,
                                           step.mask + (step.sizes[ActingSizes::HAS_MASK] > 0 ? agent * A : 0), step.actions + agent * heads);
    step.values[agent] = mine[A].of[r];
  }
}
