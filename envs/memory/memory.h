// memory: remember a cue over a pause, as in PufferLib 4.0.
//
// The first observation of an episode is the cue, -1 or 1; all others are 0. The episode's last
// action, number `length`, must name the cue: 0 for -1, 1 for 1. Earlier actions have no effect. A
// policy without memory scores 0.5 on average.
//
// Upstream draws cues with the C library's rand(), one generator for all threads. Here they come from
// env->rng, so that the same seed gives the same episodes.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

typedef struct {
    float score;  // 1 for the right answer, 0 otherwise
    float n;
} Log;

typedef struct {
    Log log;
    ENV_ROWS(float) observations;  // (1,)
    ENV_ROWS(float) actions;       // (1,)
    ENV_ROWS(float) rewards;       // (1,)
    ENV_ROWS(float) terminals;     // (1,)
    int num_agents;
    unsigned int rng;

    int length;  // actions per episode
    int cue;     // -1 or 1
    int tick;
} Memory;

ENV_FN void c_reset(Memory ENV_PTR* env) {
    env->cue = rand_r(&env->rng) % 2 == 0 ? -1 : 1;
    env->observations[0] = (float)env->cue;
    env->tick = 0;
}

ENV_FN void c_step(Memory ENV_PTR* env) {
    env->tick += 1;
    env->observations[0] = 0.0f;
    if (env->tick < env->length) {
        return;
    }
    const float right = env->actions[0] == (env->cue < 0 ? 0.0f : 1.0f) ? 1.0f : 0.0f;
    env->rewards[0] = right;
    env->terminals[0] = 1.0f;
    env->log.score += right;
    env->log.n += 1.0f;
    c_reset(env);
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(Memory ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(Memory ENV_PTR* env) {
    (void)env;
}
