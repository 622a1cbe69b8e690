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
            carried[UNITS + k] = kept[row] * forget * dc;
          }
          BARRIER
          for (uint item = me / 32; item < SEGMENTS / 16 * H / 8; item += THREADS / 32) {
            uint first_row = (uint)(t * SEGMENTS) + item / (H / 8) * 16, first_column = item % (H / 8) * 8;
            float by_state[1][1][4];
            clear(by_state);
            add_product<EXACT, 4 * H, 1, 1, 8>(u, first_row, last_weight, first_column, me, by_state);
#pragma unroll
            for (int v = 0; v < 4; ++v) {
              uint row = first_row + row_of(v, me), channel = first_column + column_of(v, me);
              carried[(row - (uint)(t * SEGMENTS)) * H + channel] = kept[row] * by_state[0][0][v];
            }
          }
          BARRIER
        }
