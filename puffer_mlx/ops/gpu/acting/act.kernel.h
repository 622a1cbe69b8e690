// A rollout's step as one kernel, around a network's layers: functions.metal.h.

#include "layers"
#include "gpu/acting/choose.metal.h"
#include "gpu/acting/encode.metal.h"

template <typename Low, int R, int GROUPS, int THREADS, int ROOM, int SEATS>
kernel void act(device const Low* observations, device const float* terminals, device const uint8_t* mask,
                device const float* noise, device const float* states, device const float* weights,
                device const int* sizes, device const float* actions, device const float* logprobs,
                device const float* values, device const Low* seen, device const int* seats, device float* after, uint me,
                uint block) {
  SHARED Rows<R> room[ROOM];
  Step<R, GROUPS, THREADS, SEATS> step(sizes, seats, weights, room, me, block);
  step.terminals = terminals, step.mask = mask, step.noise = noise, step.states = states, step.after = after;
  step.actions = WRITTEN(float, actions), step.logprobs = WRITTEN(float, logprobs);
  step.values = WRITTEN(float, values);
  encode(step, observations, step.first, WRITTEN(Low, seen));
  layers(step);
  choose(step);
}
