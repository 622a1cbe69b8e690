// The log-probability of a sample's actions, and for each head its logits' log-sum and its entropy.
  float log_sums[HEADS], entropies[HEADS];
  float logprob = 0.0f;
  uint first = 0;
#pragma unroll
  for (int head = 0; head < HEADS; ++head) {
    LOGITS(first);
    float chosen;
    int action = (int)actions[i * (uint)HEADS + (uint)head];
    categorical_head(logits, sizes[head], action, log_sums[head], entropies[head], chosen);
    logprob += chosen;
    first += (uint)sizes[head];
  }
