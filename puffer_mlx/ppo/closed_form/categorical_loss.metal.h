// The loss of a discrete space, of whose logits those where LEGAL(k) counts.
#include "start.metal.h"
  float total_entropy = 0.0f;
  if (i < n) {
#include "categorical.metal.h"
#include "terms.metal.h"
#pragma unroll
    for (int head = 0; head < HEADS; ++head) total_entropy += entropies[head];
    float by_entropy = -ent_coef[0] * each;
    first = 0;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
      float action = actions[i * (uint)HEADS + (uint)head];
      uint last = first + (uint)sizes[head];
      for (uint k = first; k < last; ++k) {
        float logp = LOGIT(k) - log_sums[head], p = exp(logp), chosen = (float)(k - first) == action ? 1.0f : 0.0f;
        float slope = by_logprob * (chosen - p) - by_entropy * p * (logp + entropies[head]);
        dy[k * n + i] = (Low)(LEGAL(k) ? slope : 0.0f);
      }
      first = last;
    }
  }
#include "end.metal.h"
  total_entropy = block_sum(total_entropy, part, me, 256);
  if (me == 0) partial[5u * blocks_of(n) + block] = total_entropy;
#undef LOGIT
