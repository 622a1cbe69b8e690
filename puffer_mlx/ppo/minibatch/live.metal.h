// Of a chunk's rows the values that live advantages are of, and those advantages when all chunks are there.
      if (LIVE && !back && (int)me < M) {
        int row = (int)me, at = chunk * M + row;
        values[at] = y[row * Y + A];
        if (has_ratios) {
          uint sample = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
          float log_sums[HEADS + 1], entropies[HEADS + 1];
          IN_SHARED const float* logits = y + row * Y;
          float logprob = of_choices<MASKED, HEADS>(logits, masks + (MASKED ? sample * (uint)A : 0), acted, heads, 1, (uint)row,
                                                    log_sums, entropies);
          if (NUMBERS > 0) logprob = of_numbers(logits, acted, logstd, limit, 1, (uint)A, (uint)row);
          ratios[at] = exp(logprob - old_logprobs[row]);
        }
      }
      if (LIVE && turn == CHUNKS - 1) {
        BARRIER
        Discounts by = {settings[6], settings[7], settings[8], settings[9], settings[10], shape[5] != 0, shape[6] != 0};
        for (int k = (int)me; k < TIMES - SEGMENTS; k += THREADS) {
          int next = k + SEGMENTS;
          AdvantageStep step = advantage_step(by, values[k], values[next], ratios[k], rewards[next], terminals[next], finals[k],
                                              finals[next]);
          advantages[k] = step.delta, ratios[k] = step.decay;
        }
        BARRIER
        if ((int)me < SEGMENTS) {
          float a = 0.0f;
          advantages[TIMES - SEGMENTS + (int)me] = a;
#pragma unroll 4
          for (int k = TIMES - 2 * SEGMENTS + (int)me; k >= 0; k -= SEGMENTS) {
            a = discounted(advantages[k], ratios[k], a);
            advantages[k] = a;
          }
        }
        BARRIER
      }
