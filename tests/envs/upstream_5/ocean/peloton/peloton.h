// peloton: riders in a line. Who is in front has the wind against them and tires; who rides behind
// recovers. All ride as fast as the first, and who is slower than that drops behind a place. In 5.0's
// form: the agents are kept in the order of the line, so that their rows aren't; the C library's rand;
// scripted opponents; bytes.
#include <stdlib.h>
#include <string.h>

typedef unsigned char obs_t;
#define PUF_HAS_BOT_POLICY
#include "pufferenv.h"

#define MOST_RIDERS 6
#define OBS_SIZE (MOST_RIDERS + 3)
#define NUM_ATNS 1
#define ACT_SIZES {3}
#define MY_STATE_PLAIN  // puffer_mlx: the struct contains no pointers

#define EASE 0
#define HOLD 1
#define PUSH 2
#define FULL 20

struct Log {
    float perf;
    float score;  // how far the line got, of what is possible
    float episode_return;
    float episode_length;
    float breaks[2];  // steps in which the first had no strength left, and changes of the lead
    float n;
};

struct Env {
    Log log;
    Agent agents[MOST_RIDERS];  // in the order of the line, the first in front
    int strength[MOST_RIDERS];  // in the same order
    int number[MOST_RIDERS];    // on their backs
    int num_agents;
    int tag;
    int boundary_reached;
    unsigned int rng;
    float most;
    int max_steps;
    int tick;
    int bot;  // 1: the last rider is a machine that always holds
    float distance;
    float total;
    float tired;
    float changes;
};
typedef Env Peloton;

void puf_set_bot_policy(Env* env, int bot_policy) {
    env->bot = bot_policy;
}

static void look(Peloton* env) {
    for (int i = 0; i < env->num_agents; i++) {
        obs_t* obs = env->agents[i].observations;  // this one's alone
        memset(obs, 0, OBS_SIZE);
        for (int k = 0; k < env->num_agents; k++) {
            obs[k] = (obs_t)env->strength[k];
        }
        obs[MOST_RIDERS] = (obs_t)i;
        obs[MOST_RIDERS + 1] = (obs_t)env->strength[i];
        obs[MOST_RIDERS + 2] = i == 0;
    }
}

void puf_init(Env* env, Dict* kwargs) {
    env->num_agents = dict_get(kwargs, "riders");
    env->max_steps = dict_get(kwargs, "max_steps");
    env->most = dict_get(kwargs, "strength");
    for (int i = 0; i < env->num_agents; i++) {
        env->agents[i].policy = i > 0;  // in self-play the other riders have another policy
        env->agents[i].action_mask = NULL;
        env->number[i] = i;
    }
}

void puf_reset(Env* env) {
    env->tick = 0;
    env->distance = env->total = env->tired = env->changes = 0.0f;
    for (int i = 0; i < env->num_agents; i++) {
        env->strength[i] = FULL / 2 + rand() % (FULL / 2);
    }
    look(env);
}

// Let rider i fall behind the next one: both change places, with everything that is theirs.
static void fall_back(Peloton* env, int i) {
    const Agent agent = env->agents[i];
    const int strength = env->strength[i], number = env->number[i];
    env->agents[i] = env->agents[i + 1];
    env->strength[i] = env->strength[i + 1];
    env->number[i] = env->number[i + 1];
    env->agents[i + 1] = agent;
    env->strength[i + 1] = strength;
    env->number[i + 1] = number;
    env->changes += i == 0;
}

void puf_step(Env* env) {
    int wanted[MOST_RIDERS];
    env->tick += 1;
    for (int i = 0; i < env->num_agents; i++) {
        const bool bot = env->bot == 1 && env->number[i] == env->num_agents - 1;
        wanted[i] = bot ? HOLD : (int)env->agents[i].actions[0];
    }
    const bool tired = env->strength[0] <= 0;
    const int speed = tired ? 0 : wanted[0];
    env->tired += tired;
    env->distance += 0.5f * (float)speed;
    for (int i = 0; i < env->num_agents; i++) {
        const int cost = i == 0 ? 2 * speed : speed - 2;
        const int left = env->strength[i] - cost;
        env->strength[i] = left < 0 ? 0 : left > FULL ? FULL : left;
        env->agents[i].rewards[0] = 0.1f * (float)speed;
        env->total += env->agents[i].rewards[0];
    }
    for (int i = 0; i + 1 < env->num_agents; i++) {  // the first who eases lets one pass
        if (wanted[i] == EASE) {
            fall_back(env, i);
            break;
        }
    }
    if (env->tick >= env->max_steps) {
        const float score = env->most * env->distance / (float)env->max_steps;
        env->log.perf += score;
        env->log.score += score;
        env->log.episode_return += env->total / (float)env->num_agents;
        env->log.episode_length += (float)env->tick;
        env->log.breaks[0] += env->tired;
        env->log.breaks[1] += env->changes;
        env->log.n += 1.0f;
        for (int i = 0; i < env->num_agents; i++) {
            env->agents[i].terminals[0] = 1.0f;
        }
        puf_reset(env);
        return;
    }
    look(env);
}

void puf_render(Env* env) {
    if (!IsWindowReady()) {
        InitWindow(40 * (MOST_RIDERS + 2), 160, "PufferLib Peloton");
        SetTargetFPS(60);
    }
    if (IsKeyDown(KEY_ESCAPE)) {
        exit(0);
    }
    BeginDrawing();
    ClearBackground((Color){6, 24, 24, 255});
    for (int i = 0; i < env->num_agents; i++) {
        const int height = 4 * env->strength[i];
        DrawRectangle(40 * (MOST_RIDERS - i), 120 - height, 30, height, i == 0 ? RED : SKYBLUE);
        DrawText(TextFormat("%d", env->number[i]), 40 * (MOST_RIDERS - i), 130, 20, RAYWHITE);
    }
    EndDrawing();
    puf_web_vsync();
}

void puf_close(Env* env) {
    if (IsWindowReady()) {
        CloseWindow();
    }
}

void puf_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "lead/tired", log->breaks[0]);
    for (int i = 1; i < 2; i++) {
        char key[32];
        snprintf(key, sizeof(key), "lead/%s", "changes");
        dict_set(out, key, log->breaks[i]);
    }
    dict_set(out, "n", log->n);
}
