// lighthouse: turn the lamp so that no ship runs onto the rocks.
#include <math.h>
#include <stdlib.h>
#define SHIPS 4

typedef struct { float score, episode_return, episode_length, n; } Log;  // sums over episodes
typedef struct { float bearing, distance, seen; } Ship;  // radians, 1 is the horizon, 1 is enough

typedef struct {
    Log log;                    // this and the next six: what every environment has
    float* observations;        // (18,)
    float* actions;             // (1,): 0 turn left, 1 hold, 2 turn right
    float* rewards;             // (1,)
    float* terminals;           // (1,)
    int num_agents;
    unsigned int rng;           // rand_r(&env->rng) is the only source of chance
    float turn, width, speed;   // of the lamp, its beam and the ships; from the .ini
    float lamp, saved, ticks;
    Ship ships[SHIPS];
} Lighthouse;

static float uniform(Lighthouse* env) { return (float)rand_r(&env->rng) / 2147483648.0f; }

static void sail(Lighthouse* env, Ship* ship) {
    *ship = (Ship){6.2831853f * uniform(env), 1.0f + 0.5f * uniform(env), 0.0f};
}

static void look(Lighthouse* env) {  // where the lamp points; of each ship where, how far, how warned
    float* to = env->observations;
    *to++ = cosf(env->lamp), *to++ = sinf(env->lamp);
    for (Ship* ship = env->ships; ship < env->ships + SHIPS; ship++) {
        *to++ = cosf(ship->bearing - env->lamp), *to++ = sinf(ship->bearing - env->lamp);
        *to++ = ship->distance, *to++ = ship->seen;
    }
}

void c_reset(Lighthouse* env) {
    env->lamp = env->saved = env->ticks = 0.0f;
    for (int i = 0; i < SHIPS; i++) sail(env, &env->ships[i]);
    look(env);
}

void c_step(Lighthouse* env) {  // rewards and terminals are 0 when it begins
    env->ticks += 1.0f;
    env->lamp += env->turn * (env->actions[0] - 1.0f);
    for (Ship* ship = env->ships; ship < env->ships + SHIPS; ship++) {
        ship->distance -= env->speed * (1.0f + 0.01f * env->saved);  // the night gets busier
        if (cosf(ship->bearing - env->lamp) > cosf(env->width)) ship->seen += 0.1f;
        if (ship->seen >= 1.0f) {  // it turns away; another one comes
            env->saved += 1.0f, env->rewards[0] = 1.0f;
            sail(env, ship);
        } else if (ship->distance < 0.1f) env->terminals[0] = 1.0f;  // aground
    }
    if (env->terminals[0]) {  // the rows that arrive with a terminal are the next episode's first
        env->rewards[0] = -1.0f;
        env->log.score += env->saved, env->log.episode_return += env->saved - 1.0f;
        env->log.episode_length += env->ticks, env->log.n += 1.0f;
        c_reset(env);
        return;
    }
    look(env);
}

void c_render(Lighthouse* env) { (void)env; }
void c_close(Lighthouse* env) { (void)env; }
