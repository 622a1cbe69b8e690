// A chunk's loss, and its gradients by the decoder's products.
      if ((int)me < M) {
        int row = (int)me;
        uint sample = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
        IN_SHARED float* mine = y + row * Y;
        IN_SHARED const float* logits = mine;
        IN_DEVICE const uint8_t* legal = masks + (MASKED ? sample * (uint)A : 0);
        float log_sums[HEADS + 1], entropies[HEADS + 1];
        float logprob = of_choices<MASKED, HEADS>(logits, legal, acted, heads, 1, (uint)row, log_sums, entropies);
        if (NUMBERS > 0) logprob = of_numbers(logits, acted, logstd, limit, 1, (uint)A, (uint)row);
        float target = LIVE ? advantages[chunk * M + row] : targets[row], now = mine[A];
        float gain = LIVE ? -target : -shares[row] * ((target - mean) / (deviation + 1e-8f));
        Compared by = {old_logprobs[row], old_values[row], gain, LIVE ? now : old_values[row], target};
        PPOTerms terms;
        float by_logprob = sample_gradients<float, MASKED, HEADS>(logits, mine, legal, acted, heads, 1, (uint)A, (uint)row, logprob,
                                                                  log_sums, entropies, by, numbers, vf_coef, entropy_weight,
                                                                  1.0f / (float)n, terms, sums);
#pragma unroll
        for (int k = 0; k < NUMBERS; ++k) {
          float s = logstd[k], distance = distance_of(acted[row * ACTS + k], mine[k], limit, s);
          mine[k] = by_logprob * distance * exp(-s);
          of_logstd[k] += by_logprob * normal_by_logstd(distance);
          sums.of[5] += normal_entropy(s);
        }
        for (uint k = 0; k <= (uint)A; ++k) dy.put((uint)row, k, mine[k]);
        ratio[sample] = terms.ratio;
        value[sample] = now;
        adv[sample] = target;
      }
