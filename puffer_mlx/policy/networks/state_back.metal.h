// Adds to `carried` the gradients of step t by the state that the gates see: a product of matrix units.
          for (uint item = me / 32; item < SEGMENTS / 16 * H / 8; item += THREADS / 32) {
            uint first_row = (uint)(t * SEGMENTS) + item / (H / 8) * 16, first_column = item % (H / 8) * 8;
            float by_state[1][1][4];
            clear(by_state);
            add_product<EXACT, ROWS * H, 1, 1, 8>(u, first_row, last_weight, first_column, me, by_state);
#pragma unroll
            for (int v = 0; v < 4; ++v) {
              uint row = first_row + row_of(v, me), channel = first_column + column_of(v, me);
              carried[(row - (uint)(t * SEGMENTS)) * H + channel] += kept[row] * by_state[0][0][v];
            }
          }
