// The definitions for glue.h of PufferLib 4.0. Included by vecenv.h in the middle of a binding.c.

#ifndef PUFFER_GLUE_4_H
#define PUFFER_GLUE_4_H

#if !defined(NUM_ATNS) || !defined(ACT_SIZES) || !defined(OBS_TENSOR_T) || !defined(Env)
#error "binding.c must define NUM_ATNS, ACT_SIZES, OBS_TENSOR_T and Env before including vecenv.h"
#endif
#if defined(MY_OBS_FULL) && defined(MY_USES_PERM)
#error "MY_OBS_FULL can't be used with MY_USES_PERM: my_setup_perm keeps pointers to private rows"
#endif
#if defined(MY_STATE_PLAIN) && (defined(MY_STATE) || defined(MY_USES_PERM))
#error "MY_STATE_PLAIN is for a struct without pointers of its own: not with MY_STATE, MY_USES_PERM"
#endif

#if defined(MY_OBS_FULL) && defined(MY_VEC_STEP_RANGE)
#error "MY_OBS_FULL can't be used with MY_VEC_STEP_RANGE: it keeps pointers to private rows"
#endif
#ifdef MY_VEC_RESET
#error "MY_VEC_RESET is not of PufferLib 4.0: environments are reset by c_reset, one by one"
#endif

// Headers that upstream's file includes.
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#if __has_include(<omp.h>)
#include <omp.h>
#endif

#include "ops.h"

// Declarations of the functions that an environment's binding defines, such as my_init; vecenv.h
// explains them.
void my_init(Env* env, Dict* kwargs);
void my_log(Log* log, Dict* out);
Env* my_vec_init(int* num_envs_out, int* buffer_env_starts, int* buffer_env_counts,
                 Dict* vec_kwargs, Dict* env_kwargs);
void my_vec_close(Env* envs);
void* my_shared(void* env, Dict* kwargs);
void my_shared_close(void* env);
void* my_get(void* env, Dict* out);
int my_put(void* env, Dict* kwargs);
void my_setup_perm(StaticVec* vec, Env* env, int slot_base);
#ifdef MY_VEC_STEP_RANGE
void MY_VEC_STEP_RANGE(StaticVec* vec, int env_start, int env_count, int num_workers);
#endif

// Return the number of bytes of one element of an observation. Upstream's name, called by bindings
// with MY_USES_PERM.
static inline size_t obs_element_size(void) {
    return sizeof(*((OBS_TENSOR_T*)0)->data);
}

// Older and newer environments have other types here, for which a compiler may only warn.
#define PUFFER_IS_FLOATS(member) \
    _Generic(((Env*)0)->member, float*: 1, void*: 1, default: 0)
_Static_assert(PUFFER_IS_FLOATS(actions), "actions must be float*, as in PufferLib 4.0");
_Static_assert(PUFFER_IS_FLOATS(rewards), "rewards must be float*, as in PufferLib 4.0");
_Static_assert(PUFFER_IS_FLOATS(terminals), "terminals must be float*, as in PufferLib 4.0");

#define PUFFER_RELEASE 4
#define PUFFER_INIT my_init
#define PUFFER_CHECK(env)
#define PUFFER_LOG my_log
#define PUFFER_RESET c_reset
#define PUFFER_STEP c_step
#define PUFFER_RENDER c_render
#define PUFFER_CLOSE c_close

// The type of an observation element, in the private rows and in the caller's.
#define PUFFER_OWN_OBS __typeof__(*((OBS_TENSOR_T*)0)->data)
#define PUFFER_OBS PUFFER_OWN_OBS
_Static_assert(_Generic(*((OBS_TENSOR_T*)0)->data, float: 1, unsigned char: 1, default: 0),
               "OBS_TENSOR_T must be ByteTensor or FloatTensor (or PrecisionTensor)");

#ifdef MY_ACTION_MASK
#define PUFFER_MASK_SIZE (MY_ACTION_MASK)
#else
#define PUFFER_MASK_SIZE 0
#endif
#define PUFFER_FIXED_MASK_SIZE PUFFER_MASK_SIZE
#define PUFFER_SET_BOT NULL
#define PUFFER_SEAT_POLICIES NULL

// 4.0 records no environment: a failure names the chunk of environments that ran.
#define PUFFER_ENTER()
#define PUFFER_AT(env)

#ifdef MY_USES_TAGS
#define PUFFER_SET_TAG puffer_set_tag

static void puffer_set_tag(StaticVec* vec, int env, int tag) {
    ((Env*)vec->envs)[env].tag = tag;
}
#else
#define PUFFER_SET_TAG NULL
#endif

static void puffer_bind_env(StaticVec* vec, int index, int agent) {
    Env* env = &((Env*)vec->envs)[index];
    PUFFER_OWN_OBS* rows = vec->observations;
    env->observations = (void*)(rows + (size_t)agent * (OBS_SIZE));
    env->actions = vec->actions + (size_t)agent * (NUM_ATNS);
    env->rewards = vec->rewards + agent;
    env->terminals = vec->terminals + agent;
#ifdef MY_ACTION_MASK
    env->action_mask = vec->action_mask + (size_t)agent * PUFFER_MASK_SIZE;
#endif
#ifdef MY_USES_TAGS
    env->tag = 0;
#endif
#ifdef MY_USES_PERM
    my_setup_perm(vec, env, agent);
#endif
}

#ifdef MY_OBS_FULL
static inline void puffer_write_observations_to(Env* env, unsigned char* rows) {
    env->observations = (void*)rows;
}
#endif

// The pointers to the rows, which a saved state excludes.
typedef struct {
    void* observations;
    float* actions;
    float* rewards;
    float* terminals;
    unsigned char* action_mask;
} PufferPointers;

static inline PufferPointers puffer_pointers(const Env* env) {
    return (PufferPointers){
        .observations = (void*)env->observations,
        .actions = env->actions,
        .rewards = env->rewards,
        .terminals = env->terminals,
#ifdef MY_ACTION_MASK
        .action_mask = env->action_mask,
#endif
    };
}

static inline void puffer_point(Env* env, const PufferPointers* to) {
    env->observations = (__typeof__(env->observations))to->observations;
    env->actions = to->actions;
    env->rewards = to->rewards;
    env->terminals = to->terminals;
#ifdef MY_ACTION_MASK
    env->action_mask = to->action_mask;
#endif
}

// The order of rows never changes, so nothing is saved.
#define PUFFER_SEAT_BYTES(env) ((size_t)0)

static inline void puffer_write_seats(const Env* env, char* to) {
    (void)env;
    (void)to;
}

static inline bool puffer_read_seats(Env* env, const char* from) {
    (void)env;
    (void)from;
    return true;
}

#include "glue.h"

#endif  // PUFFER_GLUE_4_H
