// The backward recursion of advantages: delta, decay (M, N) -> adv (M + 1, N), M = T - 1. A thread owns one agent.

#pragma once

template <int M, int N>
kernel void discount(device const float* delta, device const float* decay, device float* adv, uint i) {
  if (i < (uint)N) {
    float a = 0.0f;
    uint k = i + (uint)M * N;
    adv[k] = a;
    for (int t = M - 1; t >= 0; --t) { k -= N; a = delta[k] + decay[k] * a; adv[k] = a; }
  }
}
