// target: eight agents of a flat world swim to four targets, as in PufferLib 4.0. Copy this one for
// several agents: everything per agent is an array with one row for each agent.
//
// An agent steers with two actions: 0 to 8 turns by (action - 4) / 12 rad, 0 to 4 changes the speed
// by action - 2 pixels per step. An agent within 64 pixels of a target gets 1, and the target moves
// to a random position. So does an agent that reached no target for 512 steps.
//
// There are no episodes: terminals stay 0. An episode of the log is the time from one target of an
// agent to its next. Two peculiarities are upstream's: a heading is clipped to 0..2 pi, so that no
// agent turns through 0; and two targets reached in one step count twice in the log but give one
// reward. Positions are pixels, x to the right and y downwards. All arithmetic is float, in the order
// written.

#include <math.h>
#include <stdlib.h>

#define NUM_AGENTS 8
#define NUM_GOALS 4
#define NUMBERS (2 * NUM_GOALS + 2 * NUM_AGENTS + 4)  // elements of an observation
#define WIDTH 952                                     // pixels
#define HEIGHT 592
#define REACH 64.0f                        // pixels from a target within which it is reached
#define MOST_SPEED 20.0f                   // pixels per step, forwards or backwards
#define PATIENCE 512                       // steps without a target until an agent is moved
#define FULL_TURN 6.28318530717958647692f  // rad

typedef struct {
    float perf;            // per target: 1 after 0 steps, falling to 0 after 100
    float score;           // 1 per target
    float episode_return;  // 1 per target
    float episode_length;  // steps since the agent's last target
    float n;               // targets
} Log;

typedef struct {
    float x;
    float y;
    float heading;  // rad, 0 is to the right, a quarter turn downwards
    float speed;    // pixels per step
    int waited;     // steps since its last target
} Agent;

typedef struct {
    float x;
    float y;
} Goal;

typedef struct {
    Log log;
    float* observations;  // (8, 28), see write_observations
    float* actions;       // (8, 2): turn, speed
    float* rewards;       // (8,)
    float* terminals;     // (8,): always 0
    int num_agents;
    unsigned int rng;

    Agent agents[NUM_AGENTS];
    Goal goals[NUM_GOALS];
} Target;

static inline float clip(float value, float least, float most) {
    return value < least ? least : value > most ? most : value;
}

static void place(Target* env, float* x, float* y) {
    *x = (float)(rand_r(&env->rng) % WIDTH);
    *y = (float)(rand_r(&env->rng) % HEIGHT);
}

// Write each agent's observation: the offsets of all goals and then of all agents (its own is 0, 0),
// its heading, its last reward, and its position. Offsets and positions are fractions of the world's
// width and height, headings fractions of 2 pi.
static void write_observations(Target* env) {
    float* to = env->observations;
    for (int a = 0; a < NUM_AGENTS; a++) {
        const Agent* agent = &env->agents[a];
        for (int g = 0; g < NUM_GOALS; g++) {
            *to++ = (env->goals[g].x - agent->x) / WIDTH;
            *to++ = (env->goals[g].y - agent->y) / HEIGHT;
        }
        for (int b = 0; b < NUM_AGENTS; b++) {
            *to++ = (env->agents[b].x - agent->x) / WIDTH;
            *to++ = (env->agents[b].y - agent->y) / HEIGHT;
        }
        *to++ = agent->heading / FULL_TURN;
        *to++ = env->rewards[a];
        *to++ = agent->x / WIDTH;
        *to++ = agent->y / HEIGHT;
    }
}

static inline void move(Target* env, int a) {
    Agent* agent = &env->agents[a];
    const float* action = &env->actions[2 * a];
    agent->waited += 1;
    agent->heading = clip(agent->heading + (action[0] - 4.0f) / 12.0f, 0.0f, FULL_TURN);
    agent->speed = clip(agent->speed + (action[1] - 2.0f), -MOST_SPEED, MOST_SPEED);
    agent->x = clip(agent->x + agent->speed * cosf(agent->heading), 0.0f, WIDTH);
    agent->y = clip(agent->y + agent->speed * sinf(agent->heading), 0.0f, HEIGHT);
    if (agent->waited % PATIENCE == 0) {
        place(env, &agent->x, &agent->y);
    }
}

static void reach(Target* env, int a, Goal* goal) {
    Agent* agent = &env->agents[a];
    place(env, &goal->x, &goal->y);
    env->rewards[a] = 1.0f;
    env->log.perf += fmaxf(0.0f, 1.0f - 0.01f * (float)agent->waited);
    env->log.score += 1.0f;
    env->log.episode_return += 1.0f;
    env->log.episode_length += (float)agent->waited;
    env->log.n += 1.0f;
    agent->waited = 0;
}

// Reward agents that reached targets, and move these targets. Agents are checked in order: a
// reached target has already moved when the next agents are checked.
static void find_goals(Target* env) {
    for (int a = 0; a < NUM_AGENTS; a++) {
        for (int g = 0; g < NUM_GOALS; g++) {
            Goal* goal = &env->goals[g];
            const float dx = goal->x - env->agents[a].x;
            const float dy = goal->y - env->agents[a].y;
            if (sqrtf(dx * dx + dy * dy) <= REACH) {
                reach(env, a, goal);
            }
        }
    }
}

// Begin an episode: place all agents and targets at random. Headings and speeds are not reset; they
// begin at 0.
void c_reset(Target* env) {
    for (int a = 0; a < NUM_AGENTS; a++) {
        place(env, &env->agents[a].x, &env->agents[a].y);
        env->agents[a].waited = 0;
        env->rewards[a] = 0.0f;
    }
    for (int g = 0; g < NUM_GOALS; g++) {
        place(env, &env->goals[g].x, &env->goals[g].y);
    }
    write_observations(env);
}

void c_step(Target* env) {
    for (int a = 0; a < NUM_AGENTS; a++) {
        move(env, a);
    }
    find_goals(env);
    write_observations(env);
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
void c_render(Target* env) {
    (void)env;
}

void c_close(Target* env) {
    (void)env;
}
