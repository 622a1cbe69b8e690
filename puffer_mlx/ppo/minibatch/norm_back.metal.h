// In `normed` the gradient by the norm becomes that by what it is of, which is `dout`, too.
        for (uint k = me; k < M * 8; k += THREADS) {
          uint row = k / 8;
          float sum = 0.0f;
          for (uint channel = k % 8; channel < H; channel += 8)
            sum += normed.at(row, channel) * norm[channel] * (features.at(row, channel) + dout.at(row, channel));
          y[row * Y + k % 8] = sum;
        }
        for (uint row = 0; me < H && row < M; ++row)
          of_norm += normed.at(row, me) * scales[row] * (features.at(row, me) + dout.at(row, me));
        BARRIER
        for (uint row = me; row < M; row += THREADS) {
          float sum = 0.0f;
          for (uint k = 0; k < 8; ++k) sum += y[row * Y + k];
          shrinks[row] = sum * scales[row] * scales[row] * scales[row] / (float)H;
        }
        BARRIER
        for (uint k = me; k < M * H; k += THREADS) {
          uint row = k / H, channel = k % H;
          float total = features.at(row, channel) + dout.at(row, channel);
          float by_total = normed.at(row, channel) * norm[channel] * scales[row] - total * shrinks[row];
          normed.put(row, channel, by_total);
          dout.put(row, channel, by_total);
        }
        BARRIER
