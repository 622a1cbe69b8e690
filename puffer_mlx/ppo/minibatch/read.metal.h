// What a chunk's rows are compared with.
        for (int row = (int)me; row < M; row += THREADS) {
          uint sample = sample_of<SEGMENTS, STEPS>(row, chunk, segment, S);
          kept[row] = keep[sample * keep_step];
          old_logprobs[row] = old_logprob[sample], old_values[row] = old_value[sample];
          if (!LIVE) targets[row] = given[sample], shares[row] = further[sample];
#pragma unroll
          for (int k = 0; k < ACTS; ++k) acted[row * ACTS + k] = actions[sample * (uint)ACTS + (uint)k];
        }
