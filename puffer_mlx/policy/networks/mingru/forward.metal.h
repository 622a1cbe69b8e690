// Forward pass of one layer over a chunk of steps, from x to out. See ppo/minibatch/minibatch.kernel.h.
          make_gates<EXACT, H, M, THREADS>(x, transposed(weight), u, me);
          BARRIER
          for (uint k = me; k < UNITS * PARTS; k += THREADS) {
            uint unit = segment * (uint)H + k % UNITS, begin = (uint)(chunk * L + l) * S * (uint)H + unit;
            float state = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
            state = walk<STEPS, SEGMENTS, H, PARTS>(u, states, kept, y, y + THREADS, k, state);
            if (!back && chunk + 1 < CHUNKS && k >= UNITS * (PARTS - 1)) begins[begin + (uint)(L * H) * S] = state;
          }
          BARRIER
          for (uint k = me; k < M * H; k += THREADS) {
            uint row = k / H, channel = k % H;
            out.put(row, channel, mingru_out(u.at(row, channel + 2 * H), x.at(row, channel), states.at(row, channel)));
          }
          BARRIER
