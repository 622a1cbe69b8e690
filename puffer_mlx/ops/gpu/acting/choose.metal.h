// Last part of a step: the decoder's outputs of the features x, and what is chosen by them.

#pragma once

#include "gpu/acting/functions.metal.h"

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
    float limit = (float)step.sizes[12];
    float logprob = 0.0f;
    for (uint head = 0; head < heads; ++head) {
      uint size = (uint)step.sizes[14 + head];
      float given = step.noise[agent * heads + head];
      if (step.sizes[10] > 0) {
        float mean = within(finite(mine[head].of[r]), limit);
        float action = within(mean + exp(step.logstd[head]) * given, limit);
        float distance = (action - mean) * exp(-step.logstd[head]);
        step.actions[agent * heads + head] = action;
        logprob += -0.5f * distance * distance - 0.918938533f - step.logstd[head];  // log(2 pi) / 2
        continue;
      }
      uint last = step.sizes[9] > 0 ? 0 : size - 1, action = 0;  // the last legal choice
      float top = 0.0f, sum = 0.0f, reached = 0.0f;
      for (uint a = 0; a < size; ++a) {
        float logit = finite(mine[at + a].of[r]);
        if (step.sizes[9] > 0) {
          bool legal = step.mask[agent * A + at + a] != 0;
          logit = legal ? logit : -1e4f;  // MASKED of policy/distributions.py
          last = legal ? a : last;
        }
        mine[at + a].of[r] = logit;
        top = a == 0 || logit > top ? logit : top;
      }
      for (uint a = 0; a < size; ++a) sum += exp(mine[at + a].of[r] - top);
      top += log(sum);
      for (uint a = 0; a < size; ++a) {
        reached += exp(mine[at + a].of[r] - top);
        action += reached <= given ? 1 : 0;
      }
      action = action < last ? action : last;
      step.actions[agent * heads + head] = (float)action;
      logprob += mine[at + action].of[r] - top;
      at += size;
    }
    step.logprobs[agent] = logprob;
    step.values[agent] = mine[A].of[r];
  }
}
