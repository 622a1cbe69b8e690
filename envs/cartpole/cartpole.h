// cartpole: push a cart left or right so that the pole on it stays upright, as in PufferLib 4.0.
//
// An episode ends when the cart is more than 2.4 m from the centre, the pole leans more than 12
// degrees, or after 200 steps. Each step gives 1, the last one 0. Integration is explicit Euler:
// positions move with the old velocities.
//
// Three peculiarities are PufferLib 4.0's, so that trajectories and logs equal upstream's:
//   - the dynamics differ from the textbook's (see accelerate), so the pole falls faster;
//   - the time limit is not reported as terminal: the next observation is simply the first of
//     another episode;
//   - the log's perf is assigned, not added, and still divided by the number of episodes. It is
//     right only if every environment finished exactly one episode; use score instead.
// Everything is float arithmetic in the order written, without fused multiply-add.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

#define X_LIMIT 2.4f             // m
#define POLE_LIMIT 0.209439501f  // rad: the largest float up to 12 degrees
#define MAX_STEPS 200
#define START_WIDTH 0.08f        // each state variable starts within half of this around 0
#define RANDOM_LARGEST 2147483647.0f  // largest result of rand_r

typedef struct {
    float perf;                     // steps / 200 of the last episode only: see above
    float episode_length;           // steps
    float x_threshold_termination;  // 1 if the cart was too far from the centre
    float pole_angle_termination;   // 1 if the pole leaned too much
    float max_steps_termination;    // 1 at the time limit
    float n;
    float score;                    // steps
} Log;

typedef struct {
    Log log;
    ENV_ROWS(float) observations;  // (4,): x, x_dot, theta, theta_dot
    ENV_ROWS(float) actions;       // (1,): right above 0.5, else left; or continuous, -1 to 1
    ENV_ROWS(float) rewards;       // (1,)
    ENV_ROWS(float) terminals;     // (1,)
    int num_agents;
    unsigned int rng;

    float x;          // m
    float x_dot;      // m/s
    float theta;      // rad, 0 is upright
    float theta_dot;  // rad/s
    int tick;
    float episode_return;

    // Constant after my_init.
    float cart_mass;    // kg
    float pole_mass;    // kg
    float pole_length;  // m, from the pivot to the pole's centre
    float gravity;      // m/s^2
    float force_mag;    // N: of a discrete push, and of the continuous action 1
    float dt;           // s per step
    bool continuous;
} Cartpole;

ENV_FN void write_observations(Cartpole ENV_PTR* env) {
    env->observations[0] = env->x;
    env->observations[1] = env->x_dot;
    env->observations[2] = env->theta;
    env->observations[3] = env->theta_dot;
}

ENV_FN float draw_start(Cartpole ENV_PTR* env) {
    return (float)rand_r(&env->rng) / RANDOM_LARGEST * START_WIDTH - START_WIDTH / 2.0f;
}

ENV_FN void reset_episode(Cartpole ENV_PTR* env) {
    env->x = draw_start(env);
    env->x_dot = draw_start(env);
    env->theta = draw_start(env);
    env->theta_dot = draw_start(env);
    env->tick = 0;
    env->episode_return = 0.0f;
}

// Return the force in N with which an action pushes the cart. A continuous action that isn't finite
// gives none.
ENV_FN float force_of(const Cartpole ENV_PTR* env, float action) {
    if (!(action - action == 0.0f)) {  // NaN or infinite
        action = 0.0f;
    }
    if (!env->continuous) {
        return action > 0.5f ? env->force_mag : -env->force_mag;
    }
    return (action < -1.0f ? -1.0f : action > 1.0f ? 1.0f : action) * env->force_mag;
}

// Advance the state of cart and pole by a time step dt under a force. The textbook (Florian 2007,
// "Correct equations for the dynamics of the cart-pole system", without friction) has pole_mass *
// pole_length instead of `inertia`, and pole_mass instead of the first `mass` in the denominator
// below, which here cancels.
ENV_FN void accelerate(Cartpole ENV_PTR* env, float force) {
    const float sine = sinf(env->theta);
    const float cosine = cosf(env->theta);
    const float mass = env->cart_mass + env->pole_mass;
    const float inertia = mass + env->pole_mass;
    const float push = (force + inertia * env->theta_dot * env->theta_dot * sine) / mass;
    const float theta_acc = (env->gravity * sine - cosine * push) /
                            (env->pole_length * (4.0f / 3.0f - mass * cosine * cosine / mass));
    const float x_acc = push - inertia * theta_acc * cosine / mass;
    env->x += env->dt * env->x_dot;
    env->x_dot += env->dt * x_acc;
    env->theta += env->dt * env->theta_dot;
    env->theta_dot += env->dt * theta_acc;
}

ENV_FN void end_episode(Cartpole ENV_PTR* env, bool off, bool fallen) {
    env->log.perf = env->episode_return / MAX_STEPS;  // not +=, as upstream
    env->log.episode_length += (float)env->tick;
    env->log.score += (float)env->tick;
    env->log.x_threshold_termination += off ? 1.0f : 0.0f;
    env->log.pole_angle_termination += fallen ? 1.0f : 0.0f;
    env->log.max_steps_termination += env->tick >= MAX_STEPS ? 1.0f : 0.0f;
    env->log.n += 1.0f;
    reset_episode(env);
}

ENV_FN void c_reset(Cartpole ENV_PTR* env) {
    reset_episode(env);
    write_observations(env);
}

ENV_FN void c_step(Cartpole ENV_PTR* env) {
    accelerate(env, force_of(env, env->actions[0]));
    env->tick += 1;
    // Written so that a NaN state, which absurd parameters can cause, also ends the episode.
    const bool off = !(env->x >= -X_LIMIT && env->x <= X_LIMIT);
    const bool fallen = !(env->theta >= -POLE_LIMIT && env->theta <= POLE_LIMIT);
    env->terminals[0] = off || fallen ? 1.0f : 0.0f;
    if (off || fallen || env->tick >= MAX_STEPS) {
        end_episode(env, off, fallen);
    } else {
        env->rewards[0] = 1.0f;
        env->episode_return += 1.0f;
    }
    write_observations(env);
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(Cartpole ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(Cartpole ENV_PTR* env) {
    (void)env;
}
