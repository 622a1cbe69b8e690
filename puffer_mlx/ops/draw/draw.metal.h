// Which segments a minibatch trains on: probabilities, draw and importance weights. What is computed and where it comes
// from: `ppo/priority.py`.

#pragma once

#include "gpu/block_sum.metal.h"

// adv (T, N) -> sums (N,) of their magnitudes, for more agents than one block reads in good time.
kernel void row_sums(device const float* adv, device const int* sizes, device float* sums, uint i) {
  uint T = (uint)sizes[0], N = (uint)sizes[1];
  if (i < N) {
    uint n = i;
#include "row_sum.metal.h"
    sums[n] = sum;
  }
}

// adv (T, N), uniforms (S,), beta (1,) -> rows and weights (S,); priorities (N,) is where threads leave numbers for
// each other. One block of THREADS, a power of two, does all of it.
//
// Each thread has the cumulative probability at the end of its share of the agents: a uniform finds its share by
// bisection, and its agent by adding up that share.
template <int THREADS>
kernel void draw_rows(device const float* adv, device const float* uniforms, device const float* beta,
                      device const int* sizes, device const float* settings, device int* rows, device float* weights,
                      device float* priorities, uint me) {
  SHARED float reached[THREADS];
  uint T = (uint)sizes[0], N = (uint)sizes[1], S = (uint)sizes[2];
  float alpha = settings[0], epsilon = settings[1], exponent = -beta[0];
  constexpr uint count = (uint)THREADS;
  float mine = 0.0f;
  for (uint n = me; n < N; n += count) {
#include "row_sum.metal.h"
    float weight = pow(sum, alpha);
    weight = weight <= 3.4028234e38f ? weight : 0.0f;  // NaN and infinity are not
    priorities[n] = weight;
    mine += weight;
  }
  float total = block_sum(mine, reached, me, count) + epsilon;
  DEVICE_BARRIER

  uint share = (N + count - 1) / count, end = (me + 1) * share < N ? (me + 1) * share : N;
  float sum = 0.0f;
  for (uint n = me * share; n < end; ++n) sum += (priorities[n] + epsilon) / total;
  reached[me] = sum;
  for (uint far = 1; far < count; far *= 2) {
    BARRIER
    float before = me >= far ? reached[me - far] : 0.0f;
    BARRIER
    reached[me] += before;
  }
  BARRIER
  for (uint s = me; s < S; s += count) {
    float uniform = uniforms[s];
    uint k = 0;  // the first share that reaches it, or the last
    for (uint step = count / 2; step > 0; step /= 2)
      if (reached[k + step - 1] < uniform) k += step;
    uint n = k * share < N ? k * share : N - 1, last = (k + 1) * share < N ? (k + 1) * share - 1 : N - 1;
    float below = k > 0 ? reached[k - 1] : 0.0f, p = (priorities[n] + epsilon) / total;
    while (n < last && below + p < uniform) {
      below += p;
      p = (priorities[++n] + epsilon) / total;
    }
    rows[s] = (int)n;
    weights[s] = pow((float)N * p, exponent);
  }
}
