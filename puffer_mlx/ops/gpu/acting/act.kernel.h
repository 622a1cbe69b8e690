// A rollout's step as one kernel, around a network's layers: functions.metal.h.

#include "gpu/acting/functions.metal.h"

template <typename Low, int R, int GROUPS, int THREADS, int ROOM, int SEATS>
kernel void act(device const Low* observations, device const float* terminals, device const uint8_t* mask,
                device const float* noise, device const float* states, device const float* weights,
                device const int* sizes, device const float* actions, device const float* logprobs,
                device const float* values, device const Low* seen, device const int* seats, device float* after, uint me,
                uint block) {
#include "gpu/acting/sizes.metal.h"
  uint observed = first;
#include "gpu/acting/encode.metal.h"
#include "layers.metal.h"
#include "gpu/acting/choose.metal.h"
}
