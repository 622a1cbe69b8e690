// Complete rollouts in C, without returning to the caller at each step: see puffer_collect in vec.h.

#ifndef PUFFER_COLLECT_H
#define PUFFER_COLLECT_H

#include <stdatomic.h>
#include <stdint.h>

#include "vec.h"

#define PUFFER_PART_AGENTS 64  // agents that act together, so that their rows stay in a core's cache

typedef struct PufferCollect {
    int steps;
    PufferAct act;
    void* act_context;
    const float* actions;
    PufferRows rows;  // rows of all agents at time 0
    PufferSpan* spans;
    int capacity;
    atomic_bool stop;    // true to end after the current steps
    atomic_int in_act;   // number of threads in act()
    atomic_int num_spans;
    atomic_uint_fast64_t act_ns;
    atomic_uint_fast64_t step_ns;
} PufferCollect;

// Run environments first..end-1 through all steps of a rollout: choose actions and step.
// Environments are numbered across all groups.
void puffer_collect_part(PufferVec* self, int first, int end);

#endif
