// What a minibatch's segments are compared with: logprobs, values, adv (T, N), rows and weights (S,) -> four times
// (T, S). A thread has one step of one segment. Actions at last observations (finals (T, N) > 0) weigh nothing; without
// such observations, what is given as finals isn't read.

#pragma once

KERNEL take_targets: float logprobs values adv finals, int rows, float weights, int sizes
  -> float old_logprob old_value taken_adv weight {
  uint T = (uint)sizes[0], S = (uint)sizes[1];
  if (i < T * S) {
    uint s = i % S;
    int row = rows[s];  // outside [0, N): row 0 or N - 1, as `take_rows`
    row = row < 0 ? 0 : row < sizes[2] ? row : sizes[2] - 1;
    uint k = i / S * (uint)sizes[2] + (uint)row;
    float logprob = logprobs[k], value = values[k], advantage = adv[k], final_ = sizes[3] != 0 ? finals[k] : 0.0f;
    float importance = weights[s];
    old_logprob[i] = logprob;
    old_value[i] = value;
    taken_adv[i] = advantage;
    weight[i] = final_ > 0.0f ? 0.0f : importance;
  }
}
