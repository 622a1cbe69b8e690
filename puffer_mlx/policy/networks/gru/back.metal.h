// A chunk of a layer back: the gates in u become gradients by what they are of, those of the state's product side by side until
// all steps are done.
        if (l < L - 1 && !ALL) {
#include "forward.metal.h"
        }
        for (int t = STEPS - 1; t >= 0; --t) {
          bool ends = chunk + 1 == CHUNKS && t == STEPS - 1;
          for (uint k = me; k < UNITS; k += THREADS) {
            uint row = (uint)(t * SEGMENTS) + k / H, channel = k % H;
            float d = dout.at(row, channel) + (ends ? 0.0f : carried[k]);
            GRUGradient<float> by = gru_gradient(u.at(row, channel), u.at(row, channel + H), u.at(row, channel + 2 * H),
                                                 u.at(row, channel + 3 * H), states.at(row, channel), d);
            u.put(row, channel, by.r);
            u.put(row, channel + H, by.u);
            u.put(row, channel + 2 * H, by.hn);
            u.put(row, channel + 3 * H, by.n);
            carried[k] = kept[row] * by.before;
          }
          BARRIER
#include "../state_back.metal.h"
          BARRIER
        }
        for (uint k = me; k < M * H; k += THREADS) {
          uint row = k / H, channel = k % H;
          float by_hidden = u.at(row, channel + 2 * H);
          u.put(row, channel + 2 * H, u.at(row, channel + 3 * H));
          u.put(row, channel + 3 * H, by_hidden);
        }
