// The seam between code that knows one environment (glue.h, compiled with its binding) and code
// that doesn't (vec.c).

#ifndef PUFFER_OPS_H
#define PUFFER_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/puffer_dict.h"
#include "../include/puffer_static_vec.h"
#include "host.h"

// Rows the caller wants written: C-contiguous, agent-major, beginning at agent `first_agent`.
typedef struct {
    int first_agent;
    unsigned char* observations;  // (n, OBS_SIZE) elements
    float* rewards;               // (n,)
    float* terminals;             // (n,)
    unsigned char* masks;         // (n, mask size), NULL without masks
} PufferRows;

typedef struct {
    int release;           // of PufferLib, whose contract the environment keeps to: 4 or 5
    int obs_size;          // elements per agent
    int obs_is_float;      // 0: unsigned char, 1: float
    int obs_bytes;         // bytes of an element
    int own_obs_bytes;     // of an element of the private rows: 2 of bfloat16, which become floats
    int num_atns;
    const int* act_sizes;  // (num_atns,)
    int mask_size;         // bytes per agent
    int own_mask_size;     // of the private rows; 5.0 has them for continuous actions, too
    const int* obs_shape;  // (3,) height, width, channels; zeros if observations are no images
    bool obs_full;         // MY_OBS_FULL: the private rows of observations hold nothing
    bool uses_rand;        // environments call rand, so vec->random is part of their state
    size_t log_bytes;      // sizeof(Log)
    size_t env_bytes;      // sizeof(Env)
    size_t log_at;         // offsetof(Env, log)
    const char* gpu;       // MY_GPU: "Env rules.h"; NULL if the rules compile for a CPU alone

    // Create vec->envs and vec->size. False if that failed; the dictionaries may say why.
    bool (*create)(StaticVec* vec, unsigned int seed, Dict* vec_kwargs, Dict* env_kwargs);
    int (*num_agents)(const StaticVec* vec, int env);
    // Point environment env at the private rows that begin at an agent.
    void (*bind)(StaticVec* vec, int env, int agent);
    // Reset or step environments first..end-1; environment e owns agents[e]..agents[e+1]-1.
    void (*reset)(StaticVec* vec, const int* agents, int first, int end, const PufferRows* out);
    void (*step)(StaticVec* vec, const int* agents, int first, int end, const PufferRows* out);
    // Add the logs of environments first..end-1 that finished an episode to *total (a Log), and
    // clear them. False if there was none.
    bool (*take_log)(StaticVec* vec, int first, int end, void* total);
    // Divide *total by its n and hand it to my_log. Nothing is set if no episode ended.
    void (*write_log)(void* total, Dict* out);
    // Let an environment draw itself in its window; the first time opens it.
    void (*render)(StaticVec* vec, int env);
    // Which scripted opponent it plays against. NULL if it has none.
    void (*set_bot)(StaticVec* vec, int env, int policy);
    // Whose seats an environment's agents say they are, by their rows among all: policies (N,). NULL if
    // they don't say.
    void (*seat_policies)(const StaticVec* vec, int env, int* policies);
    // Who plays in an environment, in self-play. NULL if it has no tag.
    void (*set_tag)(StaticVec* vec, int env, int tag);
    // What an environment needs to go on, besides its rows. All NULL if it can't be saved. `to` has
    // room for state_size bytes, all 0; load is false, with the environment half loaded, if it
    // finds that the bytes don't fit.
    size_t (*state_size)(const StaticVec* vec, int env);
    void (*save)(const StaticVec* vec, int env, void* to);
    bool (*load)(StaticVec* vec, int env, const void* from, size_t size);
    // Close every environment that was created, and free vec->envs.
    void (*close)(StaticVec* vec);
} PufferOps;

extern PufferOps puffer_ops;

#endif
