// squared: walk from the centre of a grid to a target cell. Copy this one for a new environment.
//
// The agent sees the whole grid and moves one cell per step: 0 stay, 1 down, 2 up, 3 left, 4 right.
// Reaching the target gives +1; leaving the grid, or taking more than 3 * size steps, gives -1. All
// three end the episode.
//
// This file is plain C without dependencies. binding.c connects it to the stepper in ../src;
// ../include/vecenv.h describes the entire contract.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <stdbool.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

enum { STAY, DOWN, UP, LEFT, RIGHT };
enum { EMPTY, AGENT, TARGET };  // values of a cell, and so of an observation element

// Sums over the episodes that ended. Floats only; the stepper adds the logs of all environments,
// divides every field by n, and hands the means to my_log.
typedef struct {
    float perf;            // 1 for reaching the target, else 0; every environment scales it to 0..1
    float score;           // the environment's own scale: here the last reward
    float episode_return;  // sum of rewards
    float episode_length;  // steps
    float n;               // episodes
} Log;

typedef struct {
    // Members that every environment needs. The stepper sets the pointers after my_init.
    Log log;
    ENV_ROWS(unsigned char) observations;  // size * size cells, row by row, then zeros
    ENV_ROWS(float) actions;               // (1,)
    ENV_ROWS(float) rewards;               // (1,)
    ENV_ROWS(float) terminals;             // (1,)
    int num_agents;
    unsigned int rng;  // the only source of randomness: same seed, same trajectory

    // State of this game.
    int size;
    int row;
    int col;
    int tick;  // steps of this episode
} Squared;

// Begin an episode (reset) and write its first observation. Called by the stepper once, and by
// c_step.
ENV_FN void c_reset(Squared ENV_PTR* env) {
    const int cells = env->size * env->size;
    const int centre = cells / 2;
    for (int cell = 0; cell < cells; cell++) {
        env->observations[cell] = EMPTY;
    }
    env->row = env->size / 2;
    env->col = env->size / 2;
    env->tick = 0;
    env->observations[centre] = AGENT;
    int target = centre;
    while (target == centre) {
        target = rand_r(&env->rng) % cells;
    }
    env->observations[target] = TARGET;
}

// End an episode: report it, add it to the log, and begin the next one. The observation beside
// terminal = 1 is therefore the first of the next episode.
ENV_FN void end_episode(Squared ENV_PTR* env, float reward) {
    env->rewards[0] = reward;
    env->terminals[0] = 1.0f;
    env->log.perf += reward > 0.0f ? 1.0f : 0.0f;
    env->log.score += reward;
    env->log.episode_return += reward;
    env->log.episode_length += (float)env->tick;
    env->log.n += 1.0f;
    c_reset(env);
}

// Advance the environment by one step. Rewards and terminals are 0 on entry. Observations still
// have their previous values, so only the cells that change are written.
ENV_FN void c_step(Squared ENV_PTR* env) {
    env->tick += 1;
    env->observations[env->row * env->size + env->col] = EMPTY;

    // Actions are whole numbers stored as floats: all environments share one buffer type.
    switch ((int)env->actions[0]) {
        case DOWN: env->row += 1; break;
        case UP: env->row -= 1; break;
        case LEFT: env->col -= 1; break;
        case RIGHT: env->col += 1; break;
        default: break;
    }

    // The time limit comes first: a step beyond it fails even if it reaches the target.
    const bool outside =
        env->row < 0 || env->col < 0 || env->row >= env->size || env->col >= env->size;
    if (env->tick > 3 * env->size || outside) {
        end_episode(env, -1.0f);
        return;
    }
    const int cell = env->row * env->size + env->col;
    if (env->observations[cell] == TARGET) {
        end_episode(env, 1.0f);
        return;
    }
    env->observations[cell] = AGENT;
}

// Draw nothing (c_render), because the Python script draw.py draws the observation. Upstream draws
// in a window here.
ENV_FN void c_render(Squared ENV_PTR* env) {
    (void)env;
}

// Free what my_init allocated for an environment, here nothing. The stepper owns the rows behind
// the pointers.
ENV_FN void c_close(Squared ENV_PTR* env) {
    (void)env;
}
