// tug: two players pull a rope, and a player without strength slips. In PufferLib 5.0's form.
#include <stdlib.h>

typedef float obs_t;
#include "pufferenv.h"

#define OBS_SIZE 4
#define NUM_ATNS 1
#define ACT_SIZES {3}
#define MY_STATE_PLAIN  // for puffer_mlx: no pointers but those of the agents, so a run can be resumed

#define STRENGTH 10
enum { REST, HOLD, PULL };

struct Log { float score, draw_rate, with_opponent, episode_length, n; };  // sums over episodes

struct Env {
    Log log;               // this and the next five: what every environment has
    Agent agents[2];       // pointers to each agent's observations, actions, rewards, terminals
    int num_agents;
    unsigned int rng;      // rand_r(&env->rng) is the only source of chance
    int tag;               // the opponent that plays here in self-play, 0: none
    int boundary_reached;  // unused
    int reach, longest;    // steps of the knot until a player has won, steps of an episode
    int knot, ticks;       // the knot is above 0 on the side of player 0
    int strength[2];
};

static void look(Env* env) {  // each player sees its own strength first, and its own side above 0
    for (int i = 0; i < 2; i++) {
        obs_t* to = env->agents[i].observations;
        to[0] = (float)env->strength[i] / STRENGTH;
        to[1] = (float)env->strength[1 - i] / STRENGTH;
        to[2] = (float)(i == 0 ? env->knot : -env->knot) / env->reach;
        to[3] = (float)env->ticks / env->longest;
    }
}

void puf_init(Env* env, Dict* kwargs) {
    env->num_agents = 2;
    env->reach = dict_get(kwargs, "reach");  // a number; in 4.0's form dict_get(...)->value
    env->longest = dict_get(kwargs, "longest");
    const int opponents = dict_get(kwargs, "opponents");
    env->agents[0].policy = 0;                         // the learner
    env->agents[1].policy = 1 + env->rng % opponents;  // rng: vec.seed + environment
}

void puf_reset(Env* env) {
    env->knot = env->ticks = 0;
    env->strength[0] = env->strength[1] = STRENGTH / 2 + rand_r(&env->rng) % (1 + STRENGTH / 2);
    look(env);
}

static int force(Env* env, int i) {
    const int action = (int)env->agents[i].actions[0];
    int* strength = &env->strength[i];
    if (action == REST) *strength = *strength + 2 > STRENGTH ? STRENGTH : *strength + 2;
    if (action != PULL) return action;  // REST is 0, HOLD is 1
    if (*strength < 2) return 0;
    *strength -= 2;
    return 2;
}

void puf_step(Env* env) {  // rewards and terminals are 0 when it begins
    env->ticks += 1;
    env->knot += force(env, 0) - force(env, 1);
    const int winner = env->knot >= env->reach ? 1 : env->knot <= -env->reach ? -1 : 0;
    if (winner == 0 && env->ticks < env->longest) {
        look(env);
        return;
    }
    env->agents[0].rewards[0] = winner;
    env->agents[1].rewards[0] = -winner;
    env->agents[0].terminals[0] = env->agents[1].terminals[0] = 1.0f;
    env->log.score += 0.5f * (1 + winner);
    env->log.draw_rate += winner == 0;
    env->log.with_opponent += env->tag > 0;
    env->log.episode_length += env->ticks;
    env->log.n += 1.0f;
    puf_reset(env);
}

void puf_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);  // of player 0: 1 for a win, 0.5 for a draw
    dict_set(out, "draw_rate", log->draw_rate);
    dict_set(out, "with_opponent", log->with_opponent);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "n", log->n);
}

void puf_render(Env* env) { (void)env; }
void puf_close(Env* env) { (void)env; }
