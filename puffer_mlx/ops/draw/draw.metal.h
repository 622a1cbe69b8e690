// Kernel that draws the segments of a minibatch: probabilities, samples and importance weights. Equations are in ppo/priority.py.

#pragma once

#include "equations.h"
#include "gpu/block_sum.metal.h"
#include "gpu/functions.metal.h"

// Compute the sums of |advantage| over time for the R agents n, n + apart, ... (0 for agents beyond N). Several steps are loaded before the
// first is added. Adv: pointer type in any address space.
template <int R, class Adv>
FUNCTION void row_sums_of(Adv adv, uint T, uint N, uint n, uint apart, IN_THREAD float (&sums)[R]) {
  constexpr uint AHEAD = 32 / R;
#pragma unroll
  for (uint r = 0; r < R; ++r) sums[r] = 0.0f;
  for (uint t = 0; t < T; t += AHEAD) {
    float x[AHEAD][R];
#pragma unroll
    for (uint j = 0; j < AHEAD * R; ++j) {
      uint at = t + j / R, agent = n + j % R * apart;
      x[j / R][j % R] = at < T && agent < N ? adv[at * N + agent] : 0.0f;
    }
#pragma unroll
    for (uint j = 0; j < AHEAD * R; ++j) {
      float y = x[j / R][j % R];
      sums[j % R] += y < 0.0f ? -y : y;
    }
  }
}

// Return rows and weights (S,) from adv (T, N), uniforms (S,) and beta (1,); priorities (N,) is scratch memory. Runs in one block of
// THREADS threads, a power of two.
//
// The agents are divided among the threads, and each thread stores the cumulative probability up to the end of its agents. For each
// uniform number, a bisection finds the thread, and a running sum over the thread's agents finds the agent.
KERNEL draw_rows<THREADS>: float adv uniforms beta, int sizes{T N S}, float settings{alpha epsilon}
  -> int rows, float weights priorities {
  SHARED float reached[THREADS];
  uint T = (uint)sizes.T, N = (uint)sizes.N, S = (uint)sizes.S;
  float alpha = settings.alpha, epsilon = settings.epsilon;
  constexpr uint count = (uint)THREADS, AT_ONCE = 8;
  float mine = 0.0f;
  for (uint n = me; n < N; n += AT_ONCE * count) {
    float sums[AT_ONCE];
    row_sums_of<AT_ONCE>(adv, T, N, n, count, sums);
    for (uint r = 0; r < AT_ONCE && n + r * count < N; ++r) {
      float weight = segment_weight(sums[r], alpha);
      priorities[n + r * count] = weight;
      mine += weight;
    }
  }
  float total = block_sum(mine, reached, me, count);
  DEVICE_BARRIER

  uint share = (N + count - 1) / count, end = (me + 1) * share < N ? (me + 1) * share : N;
  float sum = 0.0f;
  for (uint n = me * share; n < end; ++n) sum += segment_probability(priorities[n], total, epsilon);
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
    uint k = 0;  // first thread whose cumulative probability reaches `uniform`, or the last thread
    for (uint step = count / 2; step > 0; step /= 2)
      if (reached[k + step - 1] < uniform) k += step;
    uint n = k * share < N ? k * share : N - 1, last = (k + 1) * share < N ? (k + 1) * share - 1 : N - 1;
    float below = k > 0 ? reached[k - 1] : 0.0f, p = segment_probability(priorities[n], total, epsilon);
    while (n < last && below + p < uniform) {
      below += p;
      p = segment_probability(priorities[++n], total, epsilon);
    }
    rows[s] = (int)n;
    weights[s] = segment_importance((float)N, p, beta[0]);
  }
}
