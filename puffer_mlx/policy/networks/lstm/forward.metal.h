// A chunk of a layer forward: x to out. u keeps the gates, `states` what they see of the step before, `further_states` the cells.
          for (uint k = me; k < UNITS; k += THREADS) {
            uint unit = segment * (uint)H + k;
            float before = chunk == 0 ? first_state[unit * first_step] : begun[unit];
            latest[k] = chunk == 0 ? last_state[unit * first_step] : begun[S * (uint)H + unit];
            states.put(k / H, k % H, kept[k / H] * before);
          }
          BARRIER
          for (uint t = 0; t < STEPS; ++t) {
            for (uint item = me / 32; item < SEGMENTS / 16 * H / 8; item += THREADS / 32) {
              uint first_row = t * SEGMENTS + item / (H / 8) * 16, first_column = item % (H / 8) * 8;
              IN_DEVICE const float* biases = WEIGHTS_OF(l) + LAYER;
              float z[1][4][4];
              clear(z);
              add_product<EXACT, H, 1, 4, H>(x, first_row, transposed(weight), first_column, me, z);
              add_product<EXACT, H, 1, 4, H>(states, first_row, transposed(last_weight), first_column, me, z);
#pragma unroll
              for (int v = 0; v < 4; ++v) {
                uint row = first_row + row_of(v, me), channel = first_column + column_of(v, me), k = (row - t * SEGMENTS) * H + channel;
#pragma unroll
                for (uint gate = 0; gate < 4; ++gate) z[0][gate][v] += biases[gate * H + channel] + biases[(4 + gate) * H + channel];
                LSTMCell<float> cell = lstm_cell(z[0][0][v], z[0][1][v], z[0][2][v], z[0][3][v], kept[row] * latest[k]);
                latest[k] = cell.c;
                u.put(row, channel, cell.i);
                u.put(row, channel + H, cell.f);
                u.put(row, channel + 2 * H, cell.g);
                u.put(row, channel + 3 * H, cell.o);
                further_states.put(row, channel, cell.c);
                out.put(row, channel, cell.h);
                if (t + 1 < STEPS) {
                  states.put(row + SEGMENTS, channel, kept[row + SEGMENTS] * cell.h);
                } else if (!back && chunk + 1 < CHUNKS) {
                  uint after = (uint)(2 * L * H) * S + segment * (uint)H + k;
                  begun[after] = cell.h, begun[S * (uint)H + after] = cell.c;
                }
              }
            }
            BARRIER
          }
