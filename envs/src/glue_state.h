// Save and load one environment as bytes. Included by glue.h. The macro MY_STATE_PLAIN or MY_STATE
// of the binding says how; vecenv.h explains them. Without both, an environment can't be saved.
//
// A state is the environment's own bytes, then its agents' order of rows (PUFFER_SEAT_BYTES, only in
// 5.0).

#ifndef PUFFER_GLUE_STATE_H
#define PUFFER_GLUE_STATE_H

#if defined(MY_STATE_PLAIN) || defined(MY_STATE)
#define PUFFER_STATE(function) function
#else
#define PUFFER_STATE(function) NULL
#endif

#ifdef MY_STATE_PLAIN
// Return the number of bytes that an environment's saved state takes, without its rows: the size of
// the struct.
static size_t puffer_own_bytes(const Env* env) {
    (void)env;
    return sizeof(Env);
}

// Write an environment's struct as its saved state. Pointers to rows are written as zeros, so that
// equal states have equal bytes.
static void puffer_write_env(const Env* env, void* to) {
    memcpy(to, env, sizeof(Env));
    puffer_point((Env*)to, &(PufferPointers){0});
}

static bool puffer_read_env(Env* env, const void* from, size_t size) {
    if (size != sizeof(Env)) {
        return false;
    }
    memcpy(env, from, sizeof(Env));
    return true;
}
#elif defined(MY_STATE)
// The own bytes are those of my_save_state, then the log and rng. If rng is a pointer, my_save_state
// must save the generator.
#define PUFFER_RNG_BYTES (PUFFER_IS_SEED(((Env*)0)->rng) ? sizeof(((Env*)0)->rng) : 0)
#define PUFFER_STATE_COMMON (sizeof(Log) + PUFFER_RNG_BYTES)

static size_t puffer_own_bytes(const Env* env) {
    return my_state_size(env) + PUFFER_STATE_COMMON;
}

static void puffer_write_env(const Env* env, void* to) {
    char* common = (char*)to + my_state_size(env);
    my_save_state(env, to);
    memcpy(common, &env->log, sizeof(Log));
    memcpy(common + sizeof(Log), &env->rng, PUFFER_RNG_BYTES);
}

static bool puffer_read_env(Env* env, const void* from, size_t size) {
    if (size < PUFFER_STATE_COMMON || !my_load_state(env, from, size - PUFFER_STATE_COMMON)) {
        return false;
    }
    const char* common = (const char*)from + size - PUFFER_STATE_COMMON;
    memcpy(&env->log, common, sizeof(Log));
    memcpy(&env->rng, common + sizeof(Log), PUFFER_RNG_BYTES);
    return true;
}
#endif

#if defined(MY_STATE_PLAIN) || defined(MY_STATE)
static size_t puffer_state_size(const StaticVec* vec, int index) {
    const Env* env = &((const Env*)vec->envs)[index];
    return puffer_own_bytes(env) + PUFFER_SEAT_BYTES(env);
}

static void puffer_save_env(const StaticVec* vec, int index, void* to) {
    const Env* env = &((const Env*)vec->envs)[index];
    puffer_write_env(env, to);
    puffer_write_seats(env, (char*)to + puffer_own_bytes(env));
}

// Restore an environment from its saved state. Return false if the bytes don't fit. The pointers to
// rows and the number of agents are kept in any case.
static bool puffer_load_env(StaticVec* vec, int index, const void* from, size_t size) {
    Env* env = &((Env*)vec->envs)[index];
    const PufferPointers live = puffer_pointers(env);
    const int num_agents = env->num_agents;
    const size_t seats = PUFFER_SEAT_BYTES(env);
    if (size < seats) {
        return false;
    }
    const bool fits = puffer_read_env(env, from, size - seats);
    puffer_point(env, &live);
    env->num_agents = num_agents;
    return fits && puffer_read_seats(env, (const char*)from + size - seats);
}
#endif

#endif  // PUFFER_GLUE_STATE_H
