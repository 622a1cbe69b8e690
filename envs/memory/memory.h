// memory: a cue, a pause, and then the question what the cue was, as in PufferLib 4.0.
//
// The first observation of an episode is the cue, -1 or 1; all others are 0. The action that ends
// the episode, `length` actions later, must name the cue: 0 for -1, 1 for 1. Others don't matter.
// Without memory the mean score is 0.5.
//
// Upstream draws cues with the C library's rand(), one generator for all threads; these come from
// env->rng, so that the same seed gives the same episodes.

#ifndef RULE  // for a CPU; where a GPU runs these rules, its compiler is told otherwise
#include <stdlib.h>
#define RULE static inline
#define OWN
#define ROW(type) type*
#endif

typedef struct {
    float score;  // 1 for the right answer, 0 otherwise
    float n;
} Log;

typedef struct {
    Log log;
    ROW(float) observations;  // (1,)
    ROW(float) actions;       // (1,)
    ROW(float) rewards;       // (1,)
    ROW(float) terminals;     // (1,)
    int num_agents;
    unsigned int rng;

    int length;  // actions of an episode
    int cue;     // -1 or 1
    int tick;
} Memory;

RULE void c_reset(Memory OWN* env) {
    env->cue = rand_r(&env->rng) % 2 == 0 ? -1 : 1;
    env->observations[0] = (float)env->cue;
    env->tick = 0;
}

RULE void c_step(Memory OWN* env) {
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

// Pictures are made in Python from the observation.
RULE void c_render(Memory OWN* env) {
    (void)env;
}

RULE void c_close(Memory OWN* env) {
    (void)env;
}
