// Included by vecenv.h in the middle of a binding.c: the loops that call c_step and friends
// directly, so that the compiler can inline them. Everything generic is in vec.c and pool.c.

#ifndef PUFFER_GLUE_H
#define PUFFER_GLUE_H

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

// What upstream's file includes too.
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#if __has_include(<omp.h>)
#include <omp.h>
#endif

#include "ops.h"

// What the binding defines after this line.
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
size_t my_state_size(const Env* env);
void my_save_state(const Env* env, void* to);
bool my_load_state(Env* env, const void* from, size_t size);

// Bytes of one observation element, by upstream's name: bindings with MY_USES_PERM call it.
static inline size_t obs_element_size(void) {
    return sizeof(*((OBS_TENSOR_T*)0)->data);
}

// Older and newer environments have other types here, which a compiler may only warn of.
#define PUFFER_IS_FLOATS(member) \
    _Generic(((Env*)0)->member, float*: 1, void*: 1, default: 0)
_Static_assert(PUFFER_IS_FLOATS(actions), "actions must be float*, as in PufferLib 4.0");
_Static_assert(PUFFER_IS_FLOATS(rewards), "rewards must be float*, as in PufferLib 4.0");
_Static_assert(PUFFER_IS_FLOATS(terminals), "terminals must be float*, as in PufferLib 4.0");

// An environment's rng as the number that a seed can be written to. Some keep their generator
// elsewhere, and rng is a pointer to it: they get a number that nobody reads, and have what they
// draw from rand.
#define PUFFER_IS_SEED(rng) \
    _Generic((rng), int: 1, unsigned int: 1, long: 1, unsigned long: 1, long long: 1, \
             unsigned long long: 1, short: 1, unsigned short: 1, default: 0)
#define PUFFER_SEED(rng) \
    (*_Generic((rng), int: &(rng), unsigned int: &(rng), long: &(rng), unsigned long: &(rng), \
               long long: &(rng), unsigned long long: &(rng), short: &(rng), \
               unsigned short: &(rng), default: &(unsigned int){0}))

static const int puffer_act_sizes[] = ACT_SIZES;
_Static_assert(sizeof(puffer_act_sizes) / sizeof(int) == (NUM_ATNS),
               "ACT_SIZES must have NUM_ATNS entries");
_Static_assert((OBS_SIZE) > 0, "OBS_SIZE must be positive");
_Static_assert(sizeof(Log) % sizeof(float) == 0, "Log must have float members only");

#ifdef MY_OBS_SHAPE
static const int puffer_obs_shape[] = MY_OBS_SHAPE;
_Static_assert(sizeof(puffer_obs_shape) == 3 * sizeof(int),
               "MY_OBS_SHAPE must be {height, width, channels}");
#else
static const int puffer_obs_shape[3] = {0, 0, 0};
#endif

#ifdef MY_ACTION_MASK
#define PUFFER_MASK_SIZE (MY_ACTION_MASK)
#else
#define PUFFER_MASK_SIZE 0
#endif

#ifdef MY_OBS_FULL
#define PUFFER_OBS_FULL true
#else
#define PUFFER_OBS_FULL false
#endif

#define PUFFER_ROW_BYTES ((size_t)(OBS_SIZE) * sizeof(*((OBS_TENSOR_T*)0)->data))

_Static_assert(_Generic(*((OBS_TENSOR_T*)0)->data, float: 1, unsigned char: 1, default: 0),
               "OBS_TENSOR_T must be ByteTensor or FloatTensor (or PrecisionTensor)");

// Whether rand is called; the compiler is told by who has read the sources.
#ifdef PUFFER_RAND
#define PUFFER_USES_RAND true
#define PUFFER_TURN(state) puffer_set_random(state)
#else
#define PUFFER_USES_RAND false
#define PUFFER_TURN(state) ((void)0)
#endif

#ifdef MY_VEC_INIT
static bool puffer_create_envs(StaticVec* vec, unsigned int seed, Dict* vec_kwargs,
                               Dict* env_kwargs) {
    PUFFER_TURN(vec->random);
    puffer_srand(seed);
    int size = 0;
    Env* envs = my_vec_init(&size, vec->buffer_env_starts, vec->buffer_env_counts, vec_kwargs,
                            env_kwargs);
    vec->envs = envs;
    vec->size = envs == NULL ? 0 : size;
    for (int i = 0; i < vec->size; i++) {
        PUFFER_SEED(envs[i].rng) += seed;  // my_vec_init seeds for seed 0, mostly with i
        if (i > 0 && i < vec->total_agents) {
            vec->random[i] = seed + (unsigned int)i;
        }
    }
    return vec->size > 0;
}
#else
// The number of environments isn't known before my_init says how many agents each has.
static bool puffer_create_envs(StaticVec* vec, unsigned int seed, Dict* vec_kwargs,
                               Dict* env_kwargs) {
    (void)vec_kwargs;
    Env* envs = (Env*)calloc((size_t)vec->total_agents, sizeof(Env));
    vec->envs = envs;
    if (envs == NULL) {
        return false;
    }
    for (int agents = 0; agents < vec->total_agents;) {
        Env* env = &envs[vec->size];
        PUFFER_TURN(&vec->random[vec->size]);
        puffer_srand(seed + (unsigned int)vec->size);
        PUFFER_SEED(env->rng) = seed + (unsigned int)vec->size;
        my_init(env, env_kwargs);
        vec->size += 1;
        if (env->num_agents < 1) {
            return false;
        }
        agents += env->num_agents;
        for (int i = 0; i < env_kwargs->size && vec->size == 1; i++) {
            if (env_kwargs->items[i].missing || env_kwargs->items[i].expected != NULL) {
                return false;  // the others would be just as wrong
            }
        }
    }
    return true;
}
#endif

static int puffer_env_agents(const StaticVec* vec, int env) {
    return ((const Env*)vec->envs)[env].num_agents;
}

static void puffer_bind_env(StaticVec* vec, int index, int agent) {
    Env* env = &((Env*)vec->envs)[index];
    unsigned char* rows = (unsigned char*)vec->observations;
    env->observations = (void*)(rows + (size_t)agent * PUFFER_ROW_BYTES);
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

// Both loops copy an environment's rows right after it ran, while they are in the cache.
static inline void puffer_run_envs(StaticVec* vec, const int* agents, int first, int end,
                                   const PufferRows* out, const bool reset) {
    Env* envs = (Env*)vec->envs;
    const size_t begin = (size_t)agents[first];
    const size_t count = (size_t)agents[end] - begin;
    const size_t row = begin - (size_t)out->first_agent;
    memset(vec->rewards + begin, 0, count * sizeof(float));
    memset(vec->terminals + begin, 0, count * sizeof(float));
#ifdef _OPENMP
    omp_set_num_threads(1);  // of this thread's parallel regions: the others step too
#endif
#ifdef MY_VEC_STEP_RANGE
    if (!reset) {
        PUFFER_TURN(&vec->random[first]);  // for all of them: who draws, only this function knows
        MY_VEC_STEP_RANGE(vec, first, end - first, 1);
    }
#endif
    for (int e = first; e < end; e++) {
        Env* env = &envs[e];
        const size_t agent = (size_t)agents[e];
        unsigned char* to =
            out->observations + (agent - (size_t)out->first_agent) * PUFFER_ROW_BYTES;
        unsigned char* own = (unsigned char*)vec->observations + agent * PUFFER_ROW_BYTES;
#ifdef MY_OBS_FULL
        env->observations = (void*)to;
#endif
        if (reset) {
            PUFFER_TURN(&vec->random[e]);
            c_reset(env);
        } else {
#ifndef MY_VEC_STEP_RANGE
            PUFFER_TURN(&vec->random[e]);
            c_step(env);
#endif
        }
#ifdef MY_OBS_FULL
        env->observations = (void*)own;  // the caller may free its row after the step
#else
        memcpy(to, own, (size_t)(agents[e + 1] - agents[e]) * PUFFER_ROW_BYTES);
#endif
    }
    PUFFER_TURN(NULL);
    if (reset) {
        memset(vec->rewards + begin, 0, count * sizeof(float));
        memset(vec->terminals + begin, 0, count * sizeof(float));
    }
    memcpy(out->rewards + row, vec->rewards + begin, count * sizeof(float));
    memcpy(out->terminals + row, vec->terminals + begin, count * sizeof(float));
#ifdef MY_ACTION_MASK
    memcpy(out->masks + row * PUFFER_MASK_SIZE, vec->action_mask + begin * PUFFER_MASK_SIZE,
           count * PUFFER_MASK_SIZE);
#endif
}

static void puffer_reset_envs(StaticVec* vec, const int* agents, int first, int end,
                              const PufferRows* out) {
    puffer_run_envs(vec, agents, first, end, out, true);
}

static void puffer_step_envs(StaticVec* vec, const int* agents, int first, int end,
                             const PufferRows* out) {
    puffer_run_envs(vec, agents, first, end, out, false);
}

// Log is read as an array of floats: upstream's rule, and the reason for the assertion above.
static bool puffer_take_log(StaticVec* vec, int first, int end, void* total) {
    Env* envs = (Env*)vec->envs;
    bool any = false;
    for (int e = first; e < end; e++) {
        if (envs[e].log.n == 0.0f) {
            continue;
        }
        float parts[sizeof(Log) / sizeof(float)];
        memcpy(parts, &envs[e].log, sizeof(Log));
        for (size_t i = 0; i < sizeof(Log) / sizeof(float); i++) {
            ((float*)total)[i] += parts[i];
        }
        memset(&envs[e].log, 0, sizeof(Log));
        any = true;
    }
    return any;
}

static void puffer_write_log(void* total, Dict* out) {
    Log mean;
    memcpy(&mean, total, sizeof(Log));
    const float n = mean.n;
    if (n == 0.0f) {
        return;
    }
    for (size_t i = 0; i < sizeof(Log) / sizeof(float); i++) {
        ((float*)total)[i] /= n;
    }
    memcpy(&mean, total, sizeof(Log));
    my_log(&mean, out);
    dict_set(out, "n", n);
}

#include "glue_state.h"

#ifdef PUFFER_WINDOW
#include "raylib.h"
#endif

static void puffer_render_env(StaticVec* vec, int env) {
#ifdef PUFFER_WINDOW
    SetTraceLogLevel(LOG_WARNING);  // not every texture that was loaded
#endif
    PUFFER_TURN(&vec->random[env]);
    c_render(&((Env*)vec->envs)[env]);
    PUFFER_TURN(NULL);
}

static void puffer_close_envs(StaticVec* vec) {
    Env* envs = (Env*)vec->envs;
    if (envs == NULL) {
        return;
    }
    for (int i = 0; i < vec->size; i++) {
        c_close(&envs[i]);
    }
#ifdef MY_VEC_CLOSE
    if (vec->size > 0) {  // what is shared is mostly reached through the first environment
        my_vec_close(envs);
    }
#endif
    free(envs);
    vec->envs = NULL;
}

const PufferOps puffer_ops = {
    .obs_size = (OBS_SIZE),
    .obs_is_float = _Generic(*((OBS_TENSOR_T*)0)->data, float: 1, default: 0),
    .obs_bytes = (int)sizeof(*((OBS_TENSOR_T*)0)->data),
    .num_atns = (NUM_ATNS),
    .act_sizes = puffer_act_sizes,
    .mask_size = PUFFER_MASK_SIZE,
    .obs_shape = puffer_obs_shape,
    .obs_full = PUFFER_OBS_FULL,
    .uses_rand = PUFFER_USES_RAND,
    .log_bytes = sizeof(Log),
    .env_bytes = sizeof(Env),
    .create = puffer_create_envs,
    .num_agents = puffer_env_agents,
    .bind = puffer_bind_env,
    .reset = puffer_reset_envs,
    .step = puffer_step_envs,
    .take_log = puffer_take_log,
    .write_log = puffer_write_log,
    .render = puffer_render_env,
    .state_size = PUFFER_STATE(puffer_state_size),
    .save = PUFFER_STATE(puffer_save_env),
    .load = PUFFER_STATE(puffer_load_env),
    .close = puffer_close_envs,
};

#endif  // PUFFER_GLUE_H
