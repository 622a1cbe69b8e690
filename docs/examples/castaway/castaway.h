// castaway: gather wood and stone on an island of crabs, make an axe, then a raft.
#ifndef ENV_FN  // for a CPU; where a GPU runs these rules, its compiler is told otherwise
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#define TABLE static const
#endif

#define SIDE 12  // cells of the map, the sea around the island included
#define VIEW 7   // cells that the castaway sees, itself in the middle of them
#define CRABS 4
#define LOGS 8   // of wood, for a raft
#define FULL 9   // the most of an item, and of health
enum { SEA, SAND, TREE, ROCK, BUSH, CRAB, CELLS };
enum { WAIT, UP, DOWN, LEFT, RIGHT, MAKE };
enum { WOOD, STONE, AXE, ITEMS };
enum { GOT_WOOD, GOT_STONE, MADE_AXE, MADE_RAFT, DEEDS };  // worth 1 each, the first time

TABLE int STEP_ROW[5] = {0, -1, 1, 0, 0};  // where an action leads
TABLE int STEP_COLUMN[5] = {0, 0, 0, -1, 1};

typedef struct { float score, episode_length, deeds[DEEDS], n; } Log;
typedef struct { int row, column, alive; } Crab;

typedef struct {
    Log log;
    ENV_ROWS(float) observations;
    ENV_ROWS(float) actions;
    ENV_ROWS(float) rewards;
    ENV_ROWS(float) terminals;
    int num_agents;
    unsigned int rng;
    int longest;  // steps of an episode, from the .ini
    int row, column, health, tick;
    int inventory[ITEMS];
    int done[DEEDS];
    Crab crabs[CRABS];
    uint8_t map[SIDE * SIDE];  // row by row
} Castaway;

ENV_FN int draw(Castaway ENV_PTR* env, int n) {  // 0 to n - 1
    return rand_r(&env->rng) % n;
}

ENV_FN void make_island(Castaway ENV_PTR* env) {
    for (int i = 0; i < SIDE * SIDE; i++) {
        const int row = i / SIDE, column = i % SIDE, luck = draw(env, 100);
        const bool sea = row == 0 || column == 0 || row == SIDE - 1 || column == SIDE - 1;
        env->map[i] = sea ? SEA : luck < 15 ? TREE : luck < 22 ? ROCK : luck < 28 ? BUSH : SAND;
    }
    env->row = env->column = SIDE / 2;
    env->map[SIDE * env->row + env->column] = SAND;
    for (int i = 0; i < CRABS; i++) {
        Crab ENV_PTR* crab = &env->crabs[i];
        crab->row = 1 + draw(env, SIDE - 2);
        crab->column = 1 + draw(env, SIDE - 2);
        const int at = SIDE * crab->row + crab->column;
        crab->alive = env->map[at] == SAND && at != SIDE * env->row + env->column;
        if (crab->alive) env->map[at] = CRAB;
    }
}

ENV_FN void look(Castaway ENV_PTR* env) {  // each cell one-hot, then inventory, health, time
    int at = 0;
    for (int i = 0; i < VIEW * VIEW; i++) {
        const int row = env->row + i / VIEW - VIEW / 2, column = env->column + i % VIEW - VIEW / 2;
        if (i == VIEW * VIEW / 2) continue;  // where it stands is sand
        const bool inside = row >= 0 && column >= 0 && row < SIDE && column < SIDE;
        const int here = inside ? env->map[SIDE * row + column] : SEA;
        for (int cell = 0; cell < CELLS; cell++) env->observations[at++] = cell == here;
    }
    for (int i = 0; i < ITEMS; i++) env->observations[at++] = 0.1f * env->inventory[i];
    env->observations[at++] = 0.1f * env->health;
    env->observations[at++] = (float)env->tick / env->longest;
}

ENV_FN void c_reset(Castaway ENV_PTR* env) {
    for (int i = 0; i < ITEMS; i++) env->inventory[i] = 0;
    for (int i = 0; i < DEEDS; i++) env->done[i] = 0;
    env->health = FULL;
    env->tick = 0;
    make_island(env);
    look(env);
}

ENV_FN void achieve(Castaway ENV_PTR* env, int deed) {
    env->rewards[0] += env->done[deed] ? 0.0f : 1.0f;
    env->done[deed] = 1;
}

ENV_FN void gather(Castaway ENV_PTR* env, int at, int item, int deed) {  // quicker with an axe
    if (env->inventory[item] == FULL || (env->inventory[AXE] == 0 && draw(env, 3) > 0)) return;
    env->inventory[item] += 1;
    env->map[at] = SAND;
    achieve(env, deed);
}

ENV_FN void make(Castaway ENV_PTR* env) {
    const int row = env->row, column = env->column;
    const bool shore = row == 1 || column == 1 || row == SIDE - 2 || column == SIDE - 2;
    if (env->inventory[AXE] == 0 && env->inventory[WOOD] >= 1 && env->inventory[STONE] >= 1) {
        env->inventory[WOOD] -= 1;
        env->inventory[STONE] -= 1;
        env->inventory[AXE] = 1;
        achieve(env, MADE_AXE);
    } else if (env->inventory[AXE] == 1 && env->inventory[WOOD] >= LOGS && shore) {
        achieve(env, MADE_RAFT);
    }
}

ENV_FN void act(Castaway ENV_PTR* env, int action) {
    if (action == MAKE) {
        make(env);
        return;
    }
    const int row = env->row + STEP_ROW[action], column = env->column + STEP_COLUMN[action];
    const int at = SIDE * row + column;
    switch (env->map[at]) {
        case SAND: env->row = row; env->column = column; break;
        case TREE: gather(env, at, WOOD, GOT_WOOD); break;
        case ROCK: gather(env, at, STONE, GOT_STONE); break;
        case BUSH: env->map[at] = SAND; env->health = FULL; break;  // berries
        default: break;
    }
}

ENV_FN void move_crabs(Castaway ENV_PTR* env) {
    for (int i = 0; i < CRABS; i++) {
        Crab ENV_PTR* crab = &env->crabs[i];
        if (!crab->alive) continue;
        const int way = 1 + draw(env, 4);
        const int row = crab->row + STEP_ROW[way], column = crab->column + STEP_COLUMN[way];
        if (row == env->row && column == env->column) {
            env->health -= 1;  // it pinches
        } else if (env->map[SIDE * row + column] == SAND) {
            env->map[SIDE * crab->row + crab->column] = SAND;
            env->map[SIDE * row + column] = CRAB;
            crab->row = row;
            crab->column = column;
        }
    }
}

ENV_FN void c_step(Castaway ENV_PTR* env) {
    act(env, (int)env->actions[0]);
    move_crabs(env);
    env->tick += 1;
    if (env->tick % 10 == 0) env->health -= 1;  // hunger
    if (env->done[MADE_RAFT] || env->health <= 0 || env->tick == env->longest) {
        for (int i = 0; i < DEEDS; i++) {
            env->log.deeds[i] += env->done[i];
            env->log.score += env->done[i];
        }
        env->log.episode_length += env->tick;
        env->log.n += 1.0f;
        env->terminals[0] = 1.0f;
        c_reset(env);
        return;
    }
    look(env);
}

ENV_FN void c_render(Castaway ENV_PTR* env) { (void)env; }
ENV_FN void c_close(Castaway ENV_PTR* env) { (void)env; }
