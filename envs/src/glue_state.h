// The part of glue.h that MY_STATE_PLAIN and MY_STATE choose: one environment as bytes, and back.

#ifndef PUFFER_GLUE_STATE_H
#define PUFFER_GLUE_STATE_H

#if defined(MY_STATE_PLAIN) || defined(MY_STATE)
#define PUFFER_STATE(function) function
#else
#define PUFFER_STATE(function) NULL
#endif

#ifdef MY_STATE_PLAIN
static size_t puffer_state_size(const StaticVec* vec, int index) {
    (void)vec;
    (void)index;
    return sizeof(Env);
}

// Pointers are written as zeros: the same state is the same bytes wherever its rows are.
static void puffer_save_env(const StaticVec* vec, int index, void* to) {
    memcpy(to, &((const Env*)vec->envs)[index], sizeof(Env));
#define PUFFER_FORGET(member) \
    memset((char*)to + offsetof(Env, member), 0, sizeof(((Env*)0)->member))
    PUFFER_FORGET(observations);
    PUFFER_FORGET(actions);
    PUFFER_FORGET(rewards);
    PUFFER_FORGET(terminals);
#ifdef MY_ACTION_MASK
    PUFFER_FORGET(action_mask);
#endif
#undef PUFFER_FORGET
}

static bool puffer_read_env(Env* env, const void* from, size_t size) {
    if (size != sizeof(Env)) {
        return false;
    }
    memcpy(env, from, sizeof(Env));
    return true;
}
#elif defined(MY_STATE)
// The binding's bytes, then the log and the generator, which every environment has; one that rng
// only points to belongs to the binding's bytes.
#define PUFFER_RNG_BYTES (PUFFER_IS_SEED(((Env*)0)->rng) ? sizeof(((Env*)0)->rng) : 0)
#define PUFFER_STATE_COMMON (sizeof(Log) + PUFFER_RNG_BYTES)

static size_t puffer_state_size(const StaticVec* vec, int index) {
    return my_state_size(&((const Env*)vec->envs)[index]) + PUFFER_STATE_COMMON;
}

static void puffer_save_env(const StaticVec* vec, int index, void* to) {
    const Env* env = &((const Env*)vec->envs)[index];
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
// Whatever was read, the rows stay those of this environment.
static bool puffer_load_env(StaticVec* vec, int index, const void* from, size_t size) {
    Env* env = &((Env*)vec->envs)[index];
    const Env live = *env;
    const bool fits = puffer_read_env(env, from, size);
    env->observations = live.observations;
    env->actions = live.actions;
    env->rewards = live.rewards;
    env->terminals = live.terminals;
#ifdef MY_ACTION_MASK
    env->action_mask = live.action_mask;
#endif
    env->num_agents = live.num_agents;
    return fits;
}
#endif

#endif  // PUFFER_GLUE_STATE_H
