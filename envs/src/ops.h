// Interface between code for one environment (glue.h, compiled with its binding) and code for all
// environments (vec.c).

#ifndef PUFFER_OPS_H
#define PUFFER_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/puffer_dict.h"
#include "../include/puffer_static_vec.h"
#include "host.h"

// Rows to write: C-contiguous, one per agent, beginning with agent `first_agent`.
typedef struct {
    int first_agent;
    unsigned char* observations;  // (n, OBS_SIZE) elements
    float* rewards;               // (n,)
    float* terminals;             // (n,)
    unsigned char* masks;         // (n, mask size), NULL without masks
} PufferRows;

typedef struct {
    int release;           // PufferLib's release that the environment is written for: 4 or 5
    int obs_size;          // elements per agent
    int obs_is_float;      // 0: unsigned char, 1: float
    int obs_bytes;         // bytes of an element
    int own_obs_bytes;     // bytes of an element of the private rows: 2 for bfloat16
    int num_atns;
    const int* act_sizes;  // (num_atns,)
    int mask_size;         // bytes per agent
    int own_mask_size;     // bytes per agent of the private rows; 5.0's also for continuous actions
    const int* obs_shape;  // (3,) height, width, channels of images; else zeros
    bool obs_full;         // MY_OBS_FULL: the private rows of observations are unused
    bool uses_rand;        // environments call rand, so vec->random is part of their state
    size_t log_bytes;      // sizeof(Log)
    size_t env_bytes;      // sizeof(Env)
    size_t log_at;         // offsetof(Env, log)
    const char* gpu;       // MY_GPU: "Env rules.h"; NULL if the rules compile for a CPU only

    // Create all environments: set vec->envs and vec->size. Return false on failure; the
    // dictionaries may have the reason.
    bool (*create)(StaticVec* vec, unsigned int seed, Dict* vec_kwargs, Dict* env_kwargs);
    int (*num_agents)(const StaticVec* vec, int env);
    // Set an environment's pointers to its agents' rows in the stepper's private arrays, beginning
    // at row `agent`.
    void (*bind)(StaticVec* vec, int env, int agent);
    // Reset or step environments first..end-1; environment e owns agents[e]..agents[e+1]-1.
    void (*reset)(StaticVec* vec, const int* agents, int first, int end, const PufferRows* out);
    void (*step)(StaticVec* vec, const int* agents, int first, int end, const PufferRows* out);
    // Add the logs of environments first..end-1 that finished an episode to *total (a Log), and
    // clear them. Return false if no episode ended.
    bool (*take_log)(StaticVec* vec, int first, int end, void* total);
    // Compute the means of a summed log: divide *total by its n, and write them to `out` by my_log.
    // Does nothing if no episode ended.
    void (*write_log)(void* total, Dict* out);
    // Draw an environment in its window, which the first call opens.
    void (*render)(StaticVec* vec, int env);
    // Set the scripted opponent (bot) of an environment. NULL if the environment has none.
    void (*set_bot)(StaticVec* vec, int env, int policy);
    // Write which policy plays each agent of an environment (agents[i].policy) to policies (N,), by
    // row. NULL for environments of 4.0.
    void (*seat_policies)(const StaticVec* vec, int env, int* policies);
    // Set an environment's tag, a number that says which policies play in it. NULL if it has no
    // tag.
    void (*set_tag)(StaticVec* vec, int env, int tag);
    // Return the size of an environment's state, save it, and load it, without its rows. All three
    // are NULL if it can't be saved. `to` has state_size bytes, all 0. load returns false if the
    // bytes belong to another environment; this environment is incomplete then.
    size_t (*state_size)(const StaticVec* vec, int env);
    void (*save)(const StaticVec* vec, int env, void* to);
    bool (*load)(StaticVec* vec, int env, const void* from, size_t size);
    // Close every environment that was created, and free vec->envs.
    void (*close)(StaticVec* vec);
} PufferOps;

extern PufferOps puffer_ops;

#endif
