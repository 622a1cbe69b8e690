// Backward pass of one layer over a chunk of steps. Replaces the gates in u by their gradients, and dout by the highway's part of
// x's gradient. See ppo/minibatch/minibatch.kernel.h.
        bool again = l < L - 1 && !ALL;
        if (again) {
          make_gates<EXACT, H, M, THREADS>(x, transposed(weight), u, me);
          BARRIER
        }
        for (uint k = me; k < UNITS * PARTS; k += THREADS) {
          uint unit = segment * (uint)H + k % UNITS, begin = (uint)(chunk * L + l) * S * (uint)H + unit;
          float first = chunk == 0 ? OF_LAYER(first, l)[unit * first_step] : begins[begin];
          float carry = chunk + 1 < CHUNKS ? carries[(uint)(l * UNITS) + k % UNITS] : 0.0f;
          if (again) walk<STEPS, SEGMENTS, H, PARTS>(u, states, kept, y, y + THREADS, k, first);
          if (PARTS > 1) BARRIER
          carry = walk_back<STEPS, SEGMENTS, H, PARTS>(u, x, dout, states, kept, y, y + THREADS, k, first, carry);
          if (CHUNKS > 1 && k < UNITS) carries[(uint)(l * UNITS) + k] = carry;
        }
