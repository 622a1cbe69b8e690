// A block's rows through MinGRU's recurrence, forward and back.

#pragma once

#include "rows.metal.h"

// Of a thread's steps, how many are read before the first of them is computed: a divisor.
#define AHEAD_OF(steps) ((steps) % 4 == 0 ? 4 : (steps) % 3 == 0 ? 3 : (steps) % 2 == 0 ? 2 : 1)

// A chunk's states: a thread has one channel of one segment, and a stretch of its steps, one of PARTS; what a stretch makes of
// any state before it, `sums` + `factors` times it, is known before the states are. `state` is that before the chunk; returns
// the one after the stretch.
template <int STEPS, int SEGMENTS, int H, int PARTS, class Gates, class States>
FUNCTION float walk(Gates u, States s, IN_SHARED const float* keep, IN_SHARED float* sums, IN_SHARED float* factors, uint me,
                    float state) {
  constexpr int STRETCH = STEPS / PARTS, AHEAD = STRETCH % 8 == 0 ? 8 : AHEAD_OF(STRETCH), UNITS = SEGMENTS * H;
  uint channel = me % H, segment = me % UNITS / H, part = PARTS > 1 ? me / UNITS : 0, begin = part * STRETCH;
  if (PARTS > 1) {
    float sum = 0.0f, factor = 1.0f;
#pragma unroll 4
    for (uint t = 0; t < STRETCH; ++t) {
      uint row = (begin + t) * SEGMENTS + segment;
      float z = u.at(row, channel + H), kept = keep[row];
      sum = mingru_state(z, u.at(row, channel) + 0.5f, kept * sum);
      factor = mingru_state(z, 0.0f, kept * factor);
    }
    sums[me] = sum, factors[me] = factor;
    BARRIER
    for (uint k = me % UNITS; k < me; k += UNITS) state = sums[k] + factors[k] * state;
  }
  for (uint t = 0; t < STRETCH; t += AHEAD) {
    float g[AHEAD], z[AHEAD], kept[AHEAD];
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint row = (begin + t + v) * SEGMENTS + segment;
      g[v] = u.at(row, channel) + 0.5f, z[v] = u.at(row, channel + H), kept[v] = keep[row];
    }
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      state = mingru_state(z[v], g[v], kept[v] * state);
      s.put((begin + t + v) * SEGMENTS + segment, channel, state);
    }
  }
  return state;
}

// The same backward: the gates in u become gradients by what they are of, dout the highway's part of x's. first: the state
// before the chunk; carry: dL/dstate after it. Returns dL/dstate before the stretch.
template <int STEPS, int SEGMENTS, int H, int PARTS, class Gates, class Features>
FUNCTION float walk_back(Gates u, Features x, Features dout, Features s, IN_SHARED const float* keep, IN_SHARED float* sums,
                         IN_SHARED float* factors, uint me, float first, float carry) {
  constexpr int STRETCH = STEPS / PARTS, AHEAD = AHEAD_OF(STRETCH), UNITS = SEGMENTS * H;
  uint channel = me % H, segment = me % UNITS / H, part = PARTS > 1 ? me / UNITS : 0, end = (part + 1) * STRETCH;
  if (PARTS > 1) {
    float sum = 0.0f, factor = 1.0f;
#pragma unroll 4
    for (uint t = 0; t < STRETCH; ++t) {
      uint row = (end - 1 - t) * SEGMENTS + segment;
      float z = u.at(row, channel + H), q = u.at(row, channel + 2 * H), kept = keep[row];
      float ds = sum + dout.at(row, channel) * q;
      sum = mingru_carry(z, kept, ds);
      factor = mingru_carry(z, kept, factor);
    }
    sums[me] = sum, factors[me] = factor;
    BARRIER
    for (uint k = (PARTS - 1) * UNITS + me % UNITS; k > me; k -= UNITS) carry = sums[k] + factors[k] * carry;
  }
  float after = s.at((end - 1) * SEGMENTS + segment, channel);
  for (uint t = 0; t < STRETCH; t += AHEAD) {
    float g[AHEAD], z[AHEAD], q[AHEAD], input[AHEAD], kept[AHEAD], gradient[AHEAD], before[AHEAD];
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint row = (end - 1 - t - v) * SEGMENTS + segment;
      g[v] = u.at(row, channel), z[v] = u.at(row, channel + H), q[v] = u.at(row, channel + 2 * H);
      input[v] = x.at(row, channel), gradient[v] = dout.at(row, channel), kept[v] = keep[row];
      before[v] = row >= SEGMENTS ? s.at(row - SEGMENTS, channel) : first;
    }
#pragma unroll
    for (uint v = 0; v < AHEAD; ++v) {
      uint row = (end - 1 - t - v) * SEGMENTS + segment;
      float slope = g[v] >= 0.0f ? 1.0f : (0.5f + g[v]) * (0.5f - g[v]), whole = g[v] + 0.5f;
      MinGRUGradient<float> by;
      mingru_gradient_of(z[v], q[v], whole, slope, input[v], kept[v], before[v], after, gradient[v], carry, by);
      u.put(row, channel, by.hidden);
      u.put(row, channel + H, by.gate);
      u.put(row, channel + 2 * H, by.projection);
      dout.put(row, channel, by.x);
      after = before[v];
    }
  }
  return carry;
}
