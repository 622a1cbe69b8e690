// Behind the layers RMSNorm of what they give and what the first one got (ops/norm), to `normed`. Eight threads have a row.
        for (uint k = me; k < M * 8; k += THREADS) {
          uint row = k / 8;
          float squares = 0.0f;
          for (uint channel = k % 8; channel < H; channel += 8) {
            float total = features.at(row, channel) + dout.at(row, channel);
            squares += total * total;
          }
          y[row * Y + k % 8] = squares;
        }
        BARRIER
        for (uint row = me; row < M; row += THREADS) {
          float squares = 0.0f;
          for (uint k = 0; k < 8; ++k) squares += y[row * Y + k];
          scales[row] = 1.0f / sqrt(squares / (float)H + 1.1920929e-7f);  // EPSILON of ops/norm
        }
        BARRIER
        for (uint k = me; k < M * H; k += THREADS) {
          uint row = k / H, channel = k % H;
          normed.put(row, channel, (features.at(row, channel) + dout.at(row, channel)) * scales[row] * norm[channel]);
        }
        BARRIER
