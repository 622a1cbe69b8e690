// The loss of a discrete space, whose logits LOGITS(first) declares.
#include "start.metal.h"
  float total_entropy = 0.0f;
  if (i < n) {
#include "categorical.metal.h"
#include "terms.metal.h"
#pragma unroll
    for (int head = 0; head < HEADS; ++head) total_entropy += entropies[head];
    first = 0;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
      LOGITS(first);
      int action = (int)actions[i * (uint)HEADS + (uint)head];
      for (int k = 0; k < sizes[head]; ++k) {
        float of_logprob, of_entropy;
        categorical_gradient(logits, k, action, log_sums[head], entropies[head], of_logprob, of_entropy);
        dy[(first + (uint)k) * n + i] = (Low)ppo_slope(each, terms.by_logprob, of_logprob, ent_coef[0], of_entropy);
      }
      first += (uint)sizes[head];
    }
  }
#include "end.metal.h"
  total_entropy = block_sum(total_entropy, part, me, 256);
  if (me == 0) partial[5u * blocks_of(n) + block] = total_entropy;
