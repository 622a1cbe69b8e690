// A rollout's step with the MLP's layers: ops/gpu/acting/functions.metal.h. A layer's weight (H, H), then its bias (H,).

#pragma once

#include "gpu/acting/functions.metal.h"

template <typename Low, int R, int GROUPS, int THREADS, int ROOM>
kernel void mlp_act(device const Low* observations, device const uint8_t* mask, device const float* noise,
                    device const float* weights, device const int* sizes, device const float* actions,
                    device const float* logprobs, device const float* values, device const Low* seen,
                    device float* after, uint i, uint me, uint block) {
  if (i < 8) after[i] = 0.0f;  // there is no state
#include "gpu/acting/encode.metal.h"
  for (uint layer = 0; layer < L; ++layer) {
    IN_DEVICE const float* weight = network + layer * (H + 1) * H;
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H;
      Sums<1, R> sums = multiply<1, R>(weight + channel, 0, H, x + unit - channel, H);
#pragma unroll
      for (int r = 0; r < R; ++r) y[unit].of[r] = gelu(weight[H * H + channel] + sums.of[0][r]);
    }
    BARRIER
    IN_SHARED Rows<R>* other = x;
    x = y;
    y = other;
  }
#include "gpu/acting/choose.metal.h"
}
