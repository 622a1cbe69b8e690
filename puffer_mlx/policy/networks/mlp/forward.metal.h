// A chunk of a layer forward: x to out. u keeps what GELU is taken of.
          multiply_rows<EXACT, H, M, H, HIDDEN_C, THREADS>(x, transposed(weight), u, false, me);
          BARRIER
          for (uint k = me; k < M * H; k += THREADS) {
            uint row = k / H, channel = k % H;
            float sum = u.rounded(u.at(row, channel) + WEIGHTS_OF(l)[LAYER + channel]);
            u.put(row, channel, sum);
            out.put(row, channel, gelu(sum));
          }
          BARRIER
