// Loops that call one environment's functions directly, so that the compiler can inline them.
// Included by glue_4.h and glue_5.h, which define how the functions are called and where the rows
// are. Code that is the same for all environments is in vec.c and pool.c.

#ifndef PUFFER_GLUE_H
#define PUFFER_GLUE_H

size_t my_state_size(const Env* env);
void my_save_state(const Env* env, void* to);
bool my_load_state(Env* env, const void* from, size_t size);

// An environment's rng as a variable that a seed can be written to. In some environments rng is a
// pointer to a generator: they get a dummy variable, and their randomness comes from rand.
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

#ifdef MY_OBS_FULL
#define PUFFER_OBS_FULL true
#else
#define PUFFER_OBS_FULL false
#endif

#define PUFFER_ROW_BYTES ((size_t)(OBS_SIZE) * sizeof(PUFFER_OBS))
#define PUFFER_OWN_ROW_BYTES ((size_t)(OBS_SIZE) * sizeof(PUFFER_OWN_OBS))

// PUFFER_RAND is defined if the sources call rand; vec/native scans them.
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
    PUFFER_ENTER();
    for (int i = 0; i < vec->size; i++) {
        PUFFER_AT(i);
        PUFFER_CHECK(&envs[i]);
        PUFFER_SEED(envs[i].rng) += seed;  // my_vec_init has seeded for seed 0, mostly with i
        if (i > 0 && i < vec->total_agents) {
            vec->random[i] = seed + (unsigned int)i;
        }
    }
    return vec->size > 0;
}
#else
// Create environments until they have all agents. Their number is known only afterwards, because
// my_init sets the agents of each.
static bool puffer_create_envs(StaticVec* vec, unsigned int seed, Dict* vec_kwargs,
                               Dict* env_kwargs) {
    (void)vec_kwargs;
    Env* envs = (Env*)calloc((size_t)vec->total_agents, sizeof(Env));
    vec->envs = envs;
    if (envs == NULL) {
        return false;
    }
    PUFFER_ENTER();
    for (int agents = 0; agents < vec->total_agents;) {
        Env* env = &envs[vec->size];
        PUFFER_TURN(&vec->random[vec->size]);
        puffer_srand(seed + (unsigned int)vec->size);
        PUFFER_SEED(env->rng) = seed + (unsigned int)vec->size;
        PUFFER_AT(vec->size);
        PUFFER_INIT(env, env_kwargs);
        PUFFER_CHECK(env);
        vec->size += 1;
        if (env->num_agents < 1) {
            return false;
        }
        agents += env->num_agents;
        for (int i = 0; i < env_kwargs->size && vec->size == 1; i++) {
            if (env_kwargs->items[i].missing || env_kwargs->items[i].expected != NULL) {
                return false;  // the remaining ones would fail in the same way
            }
        }
    }
    return true;
}
#endif

static int puffer_env_agents(const StaticVec* vec, int env) {
    return ((const Env*)vec->envs)[env].num_agents;
}

// Copy observation rows from an environment to the caller's array; bfloat16 becomes float, exactly.
static inline void puffer_show(unsigned char* to, const unsigned char* own, size_t rows) {
    if (sizeof(PUFFER_OBS) == sizeof(PUFFER_OWN_OBS)) {
        memcpy(to, own, rows * PUFFER_ROW_BYTES);
        return;
    }
    for (size_t i = 0; i < rows * (size_t)(OBS_SIZE); i++) {
        uint16_t upper;
        memcpy(&upper, own + 2 * i, sizeof(upper));
        const uint32_t bits = (uint32_t)upper << 16;
        memcpy(to + 4 * i, &bits, sizeof(bits));
    }
}

// Reset or step environments first..end-1, and copy each environment's rows right after it ran,
// while they are in the cache.
static inline void puffer_run_envs(StaticVec* vec, const int* agents, int first, int end,
                                   const PufferRows* out, const bool reset) {
    Env* envs = (Env*)vec->envs;
    const size_t begin = (size_t)agents[first];
    const size_t count = (size_t)agents[end] - begin;
    const size_t row = begin - (size_t)out->first_agent;
    const size_t mask = PUFFER_MASK_SIZE;
    PUFFER_ENTER();
    memset(vec->rewards + begin, 0, count * sizeof(float));
    memset(vec->terminals + begin, 0, count * sizeof(float));
#ifdef _OPENMP
    omp_set_num_threads(1);  // for parallel regions of this thread: other threads step too
#endif
#ifdef MY_VEC_STEP_RANGE
    if (!reset) {
        PUFFER_TURN(&vec->random[first]);  // for all of them: only this function knows which one draws
        MY_VEC_STEP_RANGE(vec, first, end - first, 1);
    }
#endif
    for (int e = first; e < end; e++) {
        Env* env = &envs[e];
        const size_t agent = (size_t)agents[e];
        unsigned char* to =
            out->observations + (agent - (size_t)out->first_agent) * PUFFER_ROW_BYTES;
        unsigned char* own = (unsigned char*)vec->observations + agent * PUFFER_OWN_ROW_BYTES;
        PUFFER_AT(e);
#ifdef MY_OBS_FULL
        puffer_write_observations_to(env, to);
#endif
        if (reset) {
            PUFFER_TURN(&vec->random[e]);
            PUFFER_RESET(env);
        } else {
#ifndef MY_VEC_STEP_RANGE
            PUFFER_TURN(&vec->random[e]);
            PUFFER_STEP(env);
#endif
        }
#ifdef MY_OBS_FULL
        puffer_write_observations_to(env, own);  // the caller may free the row after the step
#else
        puffer_show(to, own, (size_t)(agents[e + 1] - agents[e]));
#endif
    }
    PUFFER_TURN(NULL);
    if (reset) {
        memset(vec->rewards + begin, 0, count * sizeof(float));
        memset(vec->terminals + begin, 0, count * sizeof(float));
    }
    memcpy(out->rewards + row, vec->rewards + begin, count * sizeof(float));
    memcpy(out->terminals + row, vec->terminals + begin, count * sizeof(float));
    if (mask > 0) {
        memcpy(out->masks + row * mask, vec->action_mask + begin * mask, count * mask);
    }
}

static void puffer_reset_envs(StaticVec* vec, const int* agents, int first, int end,
                              const PufferRows* out) {
    puffer_run_envs(vec, agents, first, end, out, true);
}

static void puffer_step_envs(StaticVec* vec, const int* agents, int first, int end,
                             const PufferRows* out) {
    puffer_run_envs(vec, agents, first, end, out, false);
}

// Add the logs of environments first..end-1 to *total, and clear them. Return true if any episode
// ended. Log is read as an array of floats, as upstream requires; hence the assertion above.
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
    PUFFER_LOG(&mean, out);
    dict_set(out, "n", n);
}

#include "glue_state.h"

#ifdef PUFFER_WINDOW
#include "raylib.h"
#endif

static void puffer_render_env(StaticVec* vec, int env) {
#ifdef PUFFER_WINDOW
    SetTraceLogLevel(LOG_WARNING);  // no message for every loaded texture
#endif
    PUFFER_TURN(&vec->random[env]);
    PUFFER_RENDER(&((Env*)vec->envs)[env]);
    PUFFER_TURN(NULL);
}

static void puffer_close_envs(StaticVec* vec) {
    Env* envs = (Env*)vec->envs;
    if (envs == NULL) {
        return;
    }
    for (int i = 0; i < vec->size; i++) {
        PUFFER_CLOSE(&envs[i]);
    }
#ifdef MY_VEC_CLOSE
    if (vec->size > 0) {  // shared memory is mostly reached through the first environment
        my_vec_close(envs);
    }
#endif
    free(envs);
    vec->envs = NULL;
}

#if defined(MY_GPU) && defined(MY_STATE_PLAIN)  // a GPU gets the struct's bytes
#define PUFFER_TEXT(macro) PUFFER_LITERAL(macro)
#define PUFFER_LITERAL(text) #text
#define PUFFER_GPU PUFFER_TEXT(Env) " " MY_GPU
#else
#define PUFFER_GPU NULL
#endif

PufferOps puffer_ops = {
    .release = PUFFER_RELEASE,
    .obs_size = (OBS_SIZE),
    .obs_is_float = _Generic((PUFFER_OBS)0, float: 1, default: 0),
    .obs_bytes = (int)sizeof(PUFFER_OBS),
    .own_obs_bytes = (int)sizeof(PUFFER_OWN_OBS),
    .num_atns = (NUM_ATNS),
    .act_sizes = puffer_act_sizes,
    .mask_size = PUFFER_FIXED_MASK_SIZE,
    .own_mask_size = PUFFER_FIXED_MASK_SIZE,
    .obs_shape = puffer_obs_shape,
    .obs_full = PUFFER_OBS_FULL,
    .uses_rand = PUFFER_USES_RAND,
    .log_bytes = sizeof(Log),
    .env_bytes = sizeof(Env),
    .log_at = offsetof(Env, log),
    .gpu = PUFFER_GPU,
    .create = puffer_create_envs,
    .num_agents = puffer_env_agents,
    .bind = puffer_bind_env,
    .reset = puffer_reset_envs,
    .step = puffer_step_envs,
    .take_log = puffer_take_log,
    .write_log = puffer_write_log,
    .render = puffer_render_env,
    .set_bot = PUFFER_SET_BOT,
    .seat_policies = PUFFER_SEAT_POLICIES,
    .set_tag = PUFFER_SET_TAG,
    .state_size = PUFFER_STATE(puffer_state_size),
    .save = PUFFER_STATE(puffer_save_env),
    .load = PUFFER_STATE(puffer_load_env),
    .close = puffer_close_envs,
};

#endif  // PUFFER_GLUE_H
