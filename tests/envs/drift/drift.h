// drift: an environment for tests. An agent is pushed about in the plane by two continuous actions;
// it sees where it is on scales that a policy can't use as they are: about 1000 ± 1, and ± 0.01.

#include <math.h>

typedef struct {
    float score;  // sum of rewards
    float n;
} Log;

typedef struct {
    Log log;
    float* observations;  // 1000 + x, y / 100, steps so far
    float* actions;       // by how much x and y change
    float* rewards;       // how near to the middle
    float* terminals;
    int num_agents;
    unsigned int rng;

    int length;
    int tick;
    float x, y, sum;
} Drift;

static float place(unsigned int* rng) {
    *rng = *rng * 1664525u + 1013904223u;
    return (float)(*rng >> 8) / 8388608.0f - 1.0f;  // -1 to 1
}

static void show(Drift* env) {
    env->observations[0] = 1000.0f + env->x;
    env->observations[1] = env->y / 100.0f;
    env->observations[2] = (float)env->tick;
}

void c_reset(Drift* env) {
    env->tick = 0;
    env->sum = 0.0f;
    env->x = place(&env->rng);
    env->y = place(&env->rng);
    show(env);
}

void c_step(Drift* env) {
    env->tick += 1;
    env->x = fmaxf(-3.0f, fminf(3.0f, env->x + env->actions[0]));
    env->y = fmaxf(-3.0f, fminf(3.0f, env->y + env->actions[1]));
    env->rewards[0] = -fabsf(env->x) - 2.0f * fabsf(env->y);
    env->sum += env->rewards[0];
    if (env->tick == env->length) {
        env->terminals[0] = 1.0f;
        env->log.score += env->sum;
        env->log.n += 1.0f;
        c_reset(env);
        return;
    }
    show(env);
}

void c_render(Drift* env) {
    (void)env;
}

void c_close(Drift* env) {
    (void)env;
}
