// Kernel that computes one step of a policy, with a network's layers inserted: see functions.metal.h.

#include "layers"
#include "gpu/acting/choose.metal.h"
#include "gpu/acting/encode.metal.h"

KERNEL act<Low, R, GROUPS, THREADS, ROOM, PLAYERS>: Low observations, float terminals, uint8_t mask, float noise states
  weights, int sizes, float actions logprobs values, Low seen, int block_rows
  -> float after {
  SHARED Rows<R> room[ROOM];
  Step<R, GROUPS, THREADS, PLAYERS> step(sizes, block_rows, weights, room, me, block);
  step.terminals = terminals, step.mask = mask, step.noise = noise, step.states = states, step.after = after;
  step.actions = WRITTEN(float, actions), step.logprobs = WRITTEN(float, logprobs);
  step.values = WRITTEN(float, values);
  encode<PLAYERS>(step, observations, step.first, 1, WRITTEN(Low, seen));
  layers(step);
  choose(step);
}
