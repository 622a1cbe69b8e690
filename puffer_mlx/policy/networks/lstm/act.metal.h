// A rollout's step with LSTM: ops/gpu/acting/functions.metal.h.

#pragma once

#include "cell.h"
#include "gpu/acting/functions.metal.h"

template <typename Low, int R, int GROUPS, int THREADS, int ROOM, int SEATS>
kernel void lstm_act(device const Low* observations, device const float* terminals, device const uint8_t* mask,
                     device const float* noise, device const float* states, device const float* weights,
                     device const int* sizes, device const float* actions, device const float* logprobs,
                     device const float* values, device const Low* seen, device const int* seats, device float* after,
                     uint me, uint block) {
#include "gpu/acting/sizes.metal.h"
  uint observed = first;
#include "gpu/acting/encode.metal.h"
#include "layers.metal.h"
#include "gpu/acting/choose.metal.h"
}
