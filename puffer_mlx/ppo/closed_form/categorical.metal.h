// The log-probability of a sample's actions, and for each head its logits' log-sum and its entropy.
#define LOGIT(k) (LEGAL(k) ? (float)y[(k) * n + i] : -1e4f)
  float log_sums[HEADS], entropies[HEADS];
  float logprob = 0.0f;
  uint first = 0;
#pragma unroll
  for (int head = 0; head < HEADS; ++head) {
    uint last = first + (uint)sizes[head];
    float action = actions[i * (uint)HEADS + (uint)head];
    float top = LOGIT(first), sum = 0.0f, entropy = 0.0f;
    for (uint k = first + 1u; k < last; ++k) {
      float logit = LOGIT(k);
      top = logit > top ? logit : top;
    }
    for (uint k = first; k < last; ++k) sum += exp(LOGIT(k) - top);
    float log_sum = top + log(sum);
    for (uint k = first; k < last; ++k) {
      float logp = LOGIT(k) - log_sum;
      entropy -= exp(logp) * logp;
      if ((float)(k - first) == action) logprob += logp;
    }
    log_sums[head] = log_sum;
    entropies[head] = entropy;
    first = last;
  }
