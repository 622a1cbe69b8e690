// A chunk of a layer back: the gates in u become gradients by what they are of.
        if (l < L - 1 && !ALL) {
#include "forward.metal.h"
        }
        for (int t = STEPS - 1; t >= 0; --t) {
          bool ends = chunk + 1 == CHUNKS && t == STEPS - 1;
          for (uint k = me; k < UNITS; k += THREADS) {
            uint row = (uint)(t * SEGMENTS) + k / H, channel = k % H, unit = segment * (uint)H + k;
            float input = u.at(row, channel), forget = u.at(row, channel + H), g = u.at(row, channel + 2 * H), o = u.at(row, channel + 3 * H);
            float before = t > 0 ? further_states.at(row - SEGMENTS, channel)
                                 : chunk > 0 ? begun[S * (uint)H + unit] : last_state[unit * first_step];
            float d = dout.at(row, channel) + (ends ? 0.0f : carried[k]), squashed = squash(further_states.at(row, channel));
            float dc = (ends ? 0.0f : carried[UNITS + k]) + d * o * (1.0f - squashed * squashed);
            u.put(row, channel, dc * g * input * (1.0f - input));
            u.put(row, channel + H, dc * kept[row] * before * forget * (1.0f - forget));
            u.put(row, channel + 2 * H, dc * input * (1.0f - g * g));
            u.put(row, channel + 3 * H, d * squashed * o * (1.0f - o));
            carried[k] = 0.0f;
            carried[UNITS + k] = kept[row] * forget * dc;
          }
          BARRIER
#include "../state_back.metal.h"
          BARRIER
        }
