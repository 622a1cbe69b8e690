// convoy: three trucks drive in a row on a road of two lanes with road works. If one truck hits
// something, the episode ends for all. In upstream's form: the C library's rand, several agents and
// two heads.

#include <stdlib.h>
#include <string.h>

#include "raylib.h"

#define NUM_TRUCKS 3
#define AHEAD 4
#define LANES 2
#define TRUCK_OBS (NUM_TRUCKS + 2 + LANES * AHEAD + 2)  // 15
#define MAX_ROAD 256

typedef struct {
    float perf;
    float score;  // how far the last truck got, as a part of the road
    float episode_return;
    float episode_length;
    float crashed;
    float n;
} Log;

typedef struct {
    int cell;
    int lane;
    int speed;  // cells per step, 0 to 2
} Truck;

typedef struct {
    Log log;
    unsigned char* observations;  // (3, TRUCK_OBS)
    float* actions;               // (3, 2): brake, keep, accelerate; lane
    float* rewards;
    float* terminals;
    int num_agents;
    unsigned int rng;

    int length;
    int works;  // one cell in this many has road works
    int max_steps;
    int tick;
    float total;
    Truck trucks[NUM_TRUCKS];  // the first drives in front
    unsigned char* road;       // (length, LANES)
} Convoy;

void init(Convoy* env) {
    env->road = (unsigned char*)calloc(MAX_ROAD * LANES, sizeof(unsigned char));
}

bool blocked(Convoy* env, int cell, int lane) {
    if (cell < env->length && env->road[cell * LANES + lane]) {
        return true;
    }
    for (int i = 0; i < NUM_TRUCKS; i++) {
        if (env->trucks[i].cell == cell && env->trucks[i].lane == lane) {
            return true;
        }
    }
    return false;
}

void compute_observations(Convoy* env) {
    memset(env->observations, 0, NUM_TRUCKS * TRUCK_OBS);
    for (int i = 0; i < NUM_TRUCKS; i++) {
        unsigned char* obs = env->observations + i * TRUCK_OBS;
        const Truck* truck = &env->trucks[i];
        obs[i] = 1;
        obs[NUM_TRUCKS] = truck->speed;
        obs[NUM_TRUCKS + 1] = truck->lane;
        for (int k = 0; k < AHEAD; k++) {
            for (int lane = 0; lane < LANES; lane++) {
                obs[NUM_TRUCKS + 2 + k * LANES + lane] = blocked(env, truck->cell + 1 + k, lane);
            }
        }
        const int gap = i == 0 ? 15 : env->trucks[i - 1].cell - truck->cell;
        obs[NUM_TRUCKS + 2 + LANES * AHEAD] = gap > 15 ? 15 : gap;
        obs[NUM_TRUCKS + 3 + LANES * AHEAD] = i == 0 ? 0 : env->trucks[i - 1].speed;
    }
}

void c_reset(Convoy* env) {
    env->tick = 0;
    env->total = 0.0f;
    memset(env->road, 0, MAX_ROAD * LANES);
    for (int cell = 12; cell < env->length; cell += 3) {  // never both lanes, and room between
        if (rand() % env->works == 0) {
            env->road[cell * LANES + rand() % LANES] = 1;
        }
    }
    for (int i = 0; i < NUM_TRUCKS; i++) {
        env->trucks[i] = (Truck){.cell = 8 - 3 * i, .lane = rand() % LANES, .speed = 0};
    }
    compute_observations(env);
}

// Drive truck i one step. Returns the cells driven, or -1 if something was in the way.
int drive(Convoy* env, int i) {
    Truck* truck = &env->trucks[i];
    const float* atn = env->actions + 2 * i;
    truck->speed += (int)atn[0] - 1;
    truck->speed = truck->speed < 0 ? 0 : truck->speed > 2 ? 2 : truck->speed;
    const int lane = (int)atn[1];
    for (int k = 1; k <= truck->speed; k++) {
        if (blocked(env, truck->cell + k, lane)) {
            return -1;
        }
    }
    if (truck->speed > 0) {  // standing trucks change no lane
        truck->lane = lane;
        truck->cell += truck->speed;
    }
    return truck->speed;
}

void c_step(Convoy* env) {
    bool crashed = false;
    env->tick += 1;
    for (int i = 0; i < NUM_TRUCKS && !crashed; i++) {
        const int cells = drive(env, i);
        crashed = cells < 0;
        env->rewards[i] = crashed ? -1.0f : 0.05f * (float)cells;
        env->total += env->rewards[i];
    }
    const int last = env->trucks[NUM_TRUCKS - 1].cell;
    const bool arrived = last >= env->length;
    if (crashed || arrived || env->tick >= env->max_steps) {
        const float score = (float)(last > env->length ? env->length : last) / (float)env->length;
        env->log.perf += score;
        env->log.score += score;
        env->log.episode_return += env->total;
        env->log.episode_length += (float)env->tick;
        env->log.crashed += crashed ? 1.0f : 0.0f;
        env->log.n += 1.0f;
        for (int i = 0; i < NUM_TRUCKS; i++) {
            env->terminals[i] = 1.0f;
        }
        c_reset(env);
        return;
    }
    compute_observations(env);
}

void c_render(Convoy* env) {
    const int px = 24;
    if (!IsWindowReady()) {
        InitWindow(40 * px, 4 * px, "PufferLib Convoy");
        SetTargetFPS(10);
    }
    if (IsKeyPressed(KEY_ESCAPE)) {
        CloseWindow();
        exit(0);
    }
    BeginDrawing();
    ClearBackground((Color){6, 24, 24, 255});
    const int first = env->trucks[NUM_TRUCKS - 1].cell - 4;
    for (int x = 0; x < 40; x++) {
        for (int lane = 0; lane < LANES; lane++) {
            const int cell = first + x;
            const bool works = cell >= 0 && cell < env->length && env->road[cell * LANES + lane];
            DrawRectangle(x * px, (1 + lane) * px, px - 1, px - 1, works ? ORANGE : DARKGRAY);
        }
    }
    for (int i = 0; i < NUM_TRUCKS; i++) {
        const Rectangle box = {(float)((env->trucks[i].cell - first) * px),
                               (float)((1 + env->trucks[i].lane) * px), (float)px, (float)px};
        DrawRectangleRounded(box, 0.4f, 4, i == 0 ? RED : SKYBLUE);
    }
    EndDrawing();
}

void c_close(Convoy* env) {
    free(env->road);
}
