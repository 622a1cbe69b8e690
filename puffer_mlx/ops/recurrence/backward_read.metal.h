// Part of a backward kernel: reads a step's numbers. The states before it are STATES, or FIRST at t = 0.
      uint row = t * S + first;
      float saved[4][R], gradient[R], states[R], kept[R], after_keep[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        bool in = first + r < S;
        uint k = (row + r) * H + channel;
        gradient[r] = in ? dh[k] : 0.0f;
        states[r] = !in ? 0.0f : t > 0 ? STATES[k - S * H] : FIRST[k * first_step];
        kept[r] = in ? keep[(row + r) * keep_step] : 0.0f;
        after_keep[r] = in && t < T - 1 ? keep[(row + r + S) * keep_step] : 0.0f;
#pragma unroll
        for (int gate = 0; gate < 4; ++gate)
          saved[gate][r] = in ? (float)gates[((row + r) * 4 + gate) * H + channel] : 0.0f;
      }
#undef STATES
#undef FIRST
