// A chunk of a layer forward: x to out. u keeps r, u, n and the state's part of n, `states` what they see of the step before.
          for (uint k = me; k < UNITS; k += THREADS) {
            uint unit = segment * (uint)H + k;
            latest[k] = chunk == 0 ? first_state[unit * first_step] : begun[unit];
            states.put(k / H, k % H, kept[k / H] * latest[k]);
          }
          BARRIER
          for (uint t = 0; t < STEPS; ++t) {
            for (uint item = me / 32; item < SEGMENTS / 16 * H / 8; item += THREADS / 32) {
              uint first_row = t * SEGMENTS + item / (H / 8) * 16, first_column = item % (H / 8) * 8;
              IN_DEVICE const float* biases = WEIGHTS_OF(l) + LAYER;
              float z[1][3][4], hidden[1][3][4];
              clear(z);
              clear(hidden);
              add_product<EXACT, H, 1, 3, H>(x, first_row, transposed(weight), first_column, me, z);
              add_product<EXACT, H, 1, 3, H>(states, first_row, transposed(last_weight), first_column, me, hidden);
#pragma unroll
              for (int v = 0; v < 4; ++v) {
                uint row = first_row + row_of(v, me), channel = first_column + column_of(v, me), k = (row - t * SEGMENTS) * H + channel;
#pragma unroll
                for (uint gate = 0; gate < 3; ++gate) {
                  z[0][gate][v] += biases[gate * H + channel];
                  hidden[0][gate][v] += biases[(3 + gate) * H + channel];
                }
                GRUCell<float> cell = gru_cell(z[0][0][v] + hidden[0][0][v], z[0][1][v] + hidden[0][1][v], z[0][2][v], hidden[0][2][v],
                                               kept[row] * latest[k]);
                latest[k] = cell.h;
                u.put(row, channel, cell.r);
                u.put(row, channel + H, cell.u);
                u.put(row, channel + 2 * H, cell.n);
                u.put(row, channel + 3 * H, hidden[0][2][v]);
                out.put(row, channel, cell.h);
                if (t + 1 < STEPS) states.put(row + SEGMENTS, channel, kept[row + SEGMENTS] * cell.h);
                else if (!back && chunk + 1 < CHUNKS) begun[(uint)(L * H) * S + segment * (uint)H + k] = cell.h;
              }
            }
            BARRIER
          }
