// glider: fly to a buoy on a windy lake, and stay there. In 5.0's form: continuous actions,
// observations of bfloat16, a window with its rate.
#include <assert.h>
#include <stdint.h>
#include "raylib.h"
#include "raymath.h"

typedef uint16_t obs_t;  // bf16
#include "pufferenv.h"

#define OBS_SIZE 7
#define NUM_ATNS 2
#define ACT_SIZES {1, 1}
#define PUF_STEPS_PER_SEC 20
#define MY_STATE_PLAIN

struct Log {
    float perf;
    float score;  // part of the time at the buoy
    float episode_return;
    float episode_length;
    float n;
};

struct Env {
    Agent agents[1];
    Log log;
    int num_agents;
    unsigned int rng;
    int tag;
    int boundary_reached;
    float thrust;
    int max_steps;
    int tick;
    Vector2 at;  // the lake is from -1 to 1
    Vector2 speed;
    Vector2 buoy;
    Vector2 wind;
    float there;
    float total;
};
typedef Env Glider;

static float uniform(Glider* env, float low, float high) {
    return Lerp(low, high, (float)rand_r(&env->rng) / (float)RAND_MAX);
}

static void look(Glider* env) {
    const float seen[OBS_SIZE] = {
        env->at.x, env->at.y, 4.0f * env->speed.x, 4.0f * env->speed.y, env->buoy.x - env->at.x,
        env->buoy.y - env->at.y, (float)env->tick / (float)env->max_steps,
    };
    for (int i = 0; i < OBS_SIZE; i++) {
        env->agents[0].observations[i] = f32_to_bf16(seen[i]);
    }
    if (env->agents[0].action_mask != NULL) {  // masks of continuous actions are unused
        memset(env->agents[0].action_mask, 1, NUM_ATNS);
    }
}

void puf_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->thrust = dict_get(kwargs, "thrust");
    env->max_steps = dict_get(kwargs, "max_steps");
    assert(env->thrust > 0.0f && env->thrust <= 1.0f);
    assert((Vector2){env->thrust, 0.0f}.y == 0.0f);  // with a comma
    env->agents[0].policy = 0;
}

void puf_reset(Env* env) {
    env->tick = 0;
    env->there = env->total = 0.0f;
    env->at = (Vector2){uniform(env, -1.0f, 1.0f), uniform(env, -1.0f, 1.0f)};
    env->buoy = (Vector2){uniform(env, -0.8f, 0.8f), uniform(env, -0.8f, 0.8f)};
    env->wind = Vector2Scale((Vector2){uniform(env, -1.0f, 1.0f), uniform(env, -1.0f, 1.0f)}, 0.01f);
    env->speed = Vector2Zero();
    look(env);
}

void puf_step(Env* env) {
    const float* push = env->agents[0].actions;
    const Vector2 force = {Clamp(push[0], -1.0f, 1.0f), Clamp(push[1], -1.0f, 1.0f)};
    assert(force.x == force.x && force.y == force.y);
    env->speed = Vector2Scale(env->speed, 0.8f);
    env->speed = Vector2Add(env->speed, Vector2Scale(force, 0.2f * env->thrust));
    env->at = Vector2Add(env->at, Vector2Add(env->speed, env->wind));
    env->at = (Vector2){Clamp(env->at.x, -1.0f, 1.0f), Clamp(env->at.y, -1.0f, 1.0f)};
    env->tick += 1;
    const float away = Vector2Distance(env->at, env->buoy);
    env->there += away < 0.2f ? 1.0f : 0.0f;
    env->agents[0].rewards[0] = 0.1f * (1.0f - away);
    env->total += env->agents[0].rewards[0];
    if (env->tick >= env->max_steps) {
        env->agents[0].terminals[0] = 1.0f;
        env->log.perf += env->there / (float)env->max_steps;
        env->log.score += env->there / (float)env->max_steps;
        env->log.episode_return += env->total;
        env->log.episode_length += (float)env->tick;
        env->log.n += 1.0f;
        puf_reset(env);
        return;
    }
    look(env);
}

void puf_render(Env* env) {
    if (!IsWindowReady()) {
        InitWindow(400, 400, "PufferLib Glider");
    }
    if (WindowShouldClose()) {
        exit(0);
    }
    BeginDrawing();
    ClearBackground((Color){6, 24, 60, 255});
    DrawCircle(200 + (int)(180.0f * env->buoy.x), 200 + (int)(180.0f * env->buoy.y), 36.0f, ORANGE);
    DrawCircle(200 + (int)(180.0f * env->at.x), 200 + (int)(180.0f * env->at.y), 8.0f, RAYWHITE);
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
    dict_set(out, "n", log->n);
}
