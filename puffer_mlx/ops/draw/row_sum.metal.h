// Part of a kernel: `sum` of the magnitudes of agent n's advantages, in the order of time. Memory is asked for AHEAD
// steps before the first of them is added.
    constexpr uint AHEAD = 32;
    float sum = 0.0f;
    for (uint t = 0; t < T; t += AHEAD) {
      float x[AHEAD];
#pragma unroll
      for (uint j = 0; j < AHEAD; ++j) x[j] = t + j < T ? adv[(t + j) * N + n] : 0.0f;
#pragma unroll
      for (uint j = 0; j < AHEAD; ++j) sum += x[j] < 0.0f ? -x[j] : x[j];
    }
