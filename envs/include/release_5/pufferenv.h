// The contract between an environment of PufferLib 5.0 and the stepper (envs/src). Names are
// upstream's. vecenv.h is the contract of 4.0; the stepper is the same.
//
// An environment is a folder NAME with one header, NAME.h:
//
//     typedef float obs_t;               // or unsigned char, or bf16 (uint16_t); one element
//     #include "pufferenv.h"
//     #define OBS_SIZE 121               // observation elements per agent
//     #define NUM_ATNS 1                 // actions per agent (heads)
//     #define ACT_SIZES {5}              // choices of each head; all 1 means continuous
//     struct Log { ... };                // floats only, one of them n; n += 1 when an episode ends
//     struct Env { ... };
//
// The struct Env needs these members, in any order:
//
//     Log log
//     int num_agents         set by puf_init, the same for the life of the environment
//     unsigned int rng       seeded before puf_init; the state of every rand_r
//     Agent agents[..]       or a pointer to num_agents of them. The stepper sets the pointers in an
//                            Agent to its rows after puf_init; puf_init sets `policy`
//     int tag                in self-play the largest `policy` among the agents that opponents play;
//                            else 0
//     int boundary_reached   unused: terminals show where an episode ended
//
// and the functions that are declared below. An agent's reward and terminal are zero when puf_step
// begins. action_mask, a byte for every choice of every head, is 1 until the environment writes
// another value, which then stays. puf_step resets an environment whose episode ended, so
// observations are then the first of the next one.
//
// Optional, defined in NAME.h:
//
//     MY_VEC_INIT              NAME.h has my_vec_init, which creates all environments
//     MY_VEC_CLOSE             NAME.h has my_vec_close, called after every puf_close
//     PUF_HAS_BOT_POLICY       defined before pufferenv.h: puf_set_bot_policy selects a scripted opponent
//     PUF_STEPS_PER_SEC n      speed of a window, by default 60
//     MY_STATE_PLAIN, MY_STATE, MY_OBS_FULL, MY_OBS_SHAPE    ours, as in vecenv.h
//
// Differences from upstream: an environment whose code doesn't mention action_mask has no masks.
// The policy gets bf16 observations as float32, exactly. A failed assertion, exit and abort end the
// run with a message, not the process. For rand, rand_r, data files and raylib see vecenv.h. In
// self-play the rows keep the order of agents: opponents' rows are not moved after the learner's.
// Without self-play the learner plays every agent, whatever its `policy`.

#ifndef PUFFER_ENV_H
#define PUFFER_ENV_H

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ini.h"
#include "raylib.h"

#define PUFFER_MLX 1  // lets an environment use our additions and still compile under upstream

typedef struct Env Env;
typedef struct Log Log;

typedef struct Agent {
    obs_t* observations;         // (OBS_SIZE,)
    float* actions;              // (NUM_ATNS,); discrete choices are whole numbers
    float* rewards;              // (1,)
    float* terminals;            // (1,); 1 where an episode ended
    unsigned char* action_mask;  // (sum of ACT_SIZES,), non-zero where legal
    int policy;                  // in self-play the policy that plays this agent; 0: the learner
} Agent;

#define PUF_CPU 0
#define PUF_GPU 1
#ifndef PUF_BACKEND
#define PUF_BACKEND PUF_CPU
#endif

void puf_init(Env* env, Dict* kwargs);
void puf_reset(Env* env);
void puf_step(Env* env);
void puf_render(Env* env);
void puf_close(Env* env);
void puf_log(Log* log, Dict* out);
#ifdef PUF_HAS_BOT_POLICY
void puf_set_bot_policy(Env* env, int bot_policy);
#else
static inline void puf_set_bot_policy(Env* env, int bot_policy) {
    (void)env;
    (void)bot_policy;
}
#endif

static inline void puf_web_vsync(void) {}

// ---- bfloat16: the upper half of a float --------------------------------------------------------

typedef uint16_t bf16;

static inline bf16 f32_to_bf16(float number) {  // cut off, not rounded
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    return (bf16)(bits >> 16);
}

static inline float bf16_to_f32(bf16 number) {
    const uint32_t bits = (uint32_t)number << 16;
    float whole;
    memcpy(&whole, &bits, sizeof(whole));
    return whole;
}

#if defined(__AVX2__)
static inline void store_f32x8_as_bf16(bf16* to, __m256 numbers) {
    float each[8];
    _mm256_storeu_ps(each, numbers);
    for (int i = 0; i < 8; i++) {
        to[i] = f32_to_bf16(each[i]);
    }
}
#endif

#endif  // PUFFER_ENV_H
