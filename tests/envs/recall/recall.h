// recall: an environment for tests that only a policy with a memory can master. The first
// observation of an episode is a cue, -1 or 1; all others are 0. The action that ends the episode,
// `length` actions later, must name the cue: 0 for -1, 1 for 1. Others don't matter.

#include <stdlib.h>

typedef struct {
    float score;  // 1 for the right answer, 0 otherwise
    float n;
} Log;

typedef struct {
    Log log;
    float* observations;
    float* actions;
    float* rewards;
    float* terminals;
    int num_agents;
    unsigned int rng;

    int length;
    int cue;
    int tick;
} Recall;

void c_reset(Recall* env) {
    env->tick = 0;
    env->cue = rand_r(&env->rng) % 2;
    env->observations[0] = env->cue ? 1.0f : -1.0f;
}

void c_step(Recall* env) {
    env->tick += 1;
    env->observations[0] = 0.0f;
    if (env->tick < env->length) {
        return;
    }
    const float right = (int)env->actions[0] == env->cue ? 1.0f : 0.0f;
    env->rewards[0] = right;
    env->terminals[0] = 1.0f;
    env->log.score += right;
    env->log.n += 1.0f;
    c_reset(env);
}

void c_render(Recall* env) {
    (void)env;
}

void c_close(Recall* env) {
    (void)env;
}
