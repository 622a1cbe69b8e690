// ferry: guess on which of two banks the passengers wait. In upstream's form, and as small as can
// be: rng is a pointer, to a generator that only the current carries.

#include <stdlib.h>

typedef struct {
    float score;
    float episode_return;
    float episode_length;
    float n;
} Log;

typedef struct {
    Log log;
    float* observations;  // (1,): the bank, -1 or 1
    float* actions;       // (1,)
    float* rewards;
    float* terminals;
    int num_agents;
    unsigned int* rng;  // moves the river
    int river;
} Ferry;

void c_reset(Ferry* env) {
    if (env->rng != NULL) {
        env->river = rand_r(env->rng);
    }
    env->observations[0] = rand() % 2 ? 1.0f : -1.0f;
}

void c_step(Ferry* env) {
    const int bank = env->observations[0] > 0.0f;
    const float reward = (int)env->actions[0] == bank ? 1.0f : -1.0f;
    env->rewards[0] = reward;
    env->terminals[0] = 1.0f;
    env->log.score += reward;
    env->log.episode_return += reward;
    env->log.episode_length += 1.0f;
    env->log.n += 1.0f;
    c_reset(env);
}

void c_render(Ferry* env) {
    (void)env;
}

void c_close(Ferry* env) {
    free(env->rng);
}
