// connect4_two: four in a row between two agents. Copy this one for games in which agents take turns.
//
// Both agents act in every step, but only one of them moves while the other waits. The mask of the
// waiting agent allows one choice, WAITS, and its action has no effect. A random agent begins. Four
// stones in a line win: +1 for the winner, -1 for the loser, 0 for both if the board is full. The
// game ends for both in the same step.
//
// Each agent sees its own stones, the opponent's, and where its next stone would land, as in
// ../connect4. The last plane is empty while the agent waits, which shows whose turn it is. So a
// policy trained in one of the two environments can play in the other.
//
// A game can begin in the middle, with up to `opening_stones` random stones that make no four. A policy
// that only plays against itself then also meets positions that it would not choose.
//
// A move into a full column, or an action that is no column, loses the game. The mask excludes both.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

#define ROWS 6
#define COLUMNS 7
#define CELLS (ROWS * COLUMNS)
#define SEATS 2
#define WAITS 0  // the only choice of the waiting agent

enum { OWN_STONES, OTHERS_STONES, LANDING, PLANES };  // planes of an observation

typedef struct {
    float score;           // 1, 0, -1 for agent 0
    float slot_0_score;    // 1 for a win of agent 0, 0.5 for a draw, 0 for a loss
    float slot_1_score;    // as slot_0_score, for agent 1
    float draw_rate;       // 1 for a draw
    float episode_length;  // stones on the final board, including the opening
    float n;
} Log;

typedef struct {
    Log log;
    ENV_ROWS(unsigned char) observations;  // (2, 3, 6, 7) zeros and ones, the top row first
    ENV_ROWS(float) actions;               // (2, 1) a column
    ENV_ROWS(float) rewards;               // (2,)
    ENV_ROWS(float) terminals;             // (2,)
    ENV_ROWS(unsigned char) action_mask;   // (2, 7) 0: illegal; while waiting all but WAITS
    int num_agents;
    unsigned int rng;

    int opening_stones;    // largest number of stones when a game begins
    int mover;             // whose turn it is
    int stones;            // on the board
    int heights[COLUMNS];  // stones of each column
    uint64_t boards[SEATS];  // bit 7 * column + row, as in ../connect4
} Connect4Two;

ENV_FN uint64_t cell_bit(int column, int row) {
    return (uint64_t)1 << (column * (ROWS + 1) + row);
}

// Return true if a player's stones, one bit per cell, contain a line of four: four bits set, `step`
// apart. The step gives the direction of the line.
ENV_FN bool lines(uint64_t board, int step) {
    const uint64_t pairs = board & board >> step;
    return (pairs & pairs >> 2 * step) != 0;
}

ENV_FN bool has_four(uint64_t board) {
    return lines(board, 1) || lines(board, ROWS) || lines(board, ROWS + 1) ||
           lines(board, ROWS + 2);
}

ENV_FN bool is_full(const Connect4Two ENV_PTR* env, int column) {
    return env->heights[column] == ROWS;
}

ENV_FN void show(Connect4Two ENV_PTR* env, int seat, int plane, int column, int row,
                 unsigned char is) {
    const int cell = (ROWS - 1 - row) * COLUMNS + column;
    env->observations[(seat * PLANES + plane) * CELLS + cell] = is;
}

// Write, for both players of Connect Four, the masks of legal columns and the cells where stones
// would land. Both depend on whose turn it is.
ENV_FN void show_turn(Connect4Two ENV_PTR* env) {
    for (int seat = 0; seat < SEATS; seat++) {
        const bool moves = seat == env->mover;
        for (int column = 0; column < COLUMNS; column++) {
            const bool open = !is_full(env, column);
            env->action_mask[seat * COLUMNS + column] = moves ? open : column == WAITS;
            if (open) {
                show(env, seat, LANDING, column, env->heights[column], moves);
            }
        }
    }
}

ENV_FN void drop(Connect4Two ENV_PTR* env, int column) {
    const int row = env->heights[column];
    env->boards[env->mover] |= cell_bit(column, row);
    env->heights[column] += 1;
    env->stones += 1;
    for (int seat = 0; seat < SEATS; seat++) {
        show(env, seat, seat == env->mover ? OWN_STONES : OTHERS_STONES, column, row, 1);
        show(env, seat, LANDING, column, row, 0);
    }
}

ENV_FN void clear(Connect4Two ENV_PTR* env) {
    for (int i = 0; i < SEATS * PLANES * CELLS; i++) {
        env->observations[i] = 0;
    }
    for (int seat = 0; seat < SEATS; seat++) {
        env->boards[seat] = 0;
    }
    for (int column = 0; column < COLUMNS; column++) {
        env->heights[column] = 0;
    }
    env->stones = 0;
    env->mover = rand_r(&env->rng) % SEATS;
}

ENV_FN int random_column(Connect4Two ENV_PTR* env) {
    int column = rand_r(&env->rng) % COLUMNS;
    while (is_full(env, column)) {
        column = rand_r(&env->rng) % COLUMNS;
    }
    return column;
}

// Begin a game of Connect Four with random stones, alternating between the two agents. Return false
// if one of them makes a line of four.
ENV_FN bool open_with(Connect4Two ENV_PTR* env, int stones) {
    for (int i = 0; i < stones; i++) {
        drop(env, random_column(env));
        if (has_four(env->boards[env->mover])) {
            return false;
        }
        env->mover = 1 - env->mover;
    }
    return true;
}

ENV_FN void c_reset(Connect4Two ENV_PTR* env) {
    const int stones = env->opening_stones ? rand_r(&env->rng) % (env->opening_stones + 1) : 0;
    do {
        clear(env);
    } while (!open_with(env, stones));
    show_turn(env);
}

// End a game of two agents: agent 0 gets this reward, and agent 1 its negative.
ENV_FN void end_episode(Connect4Two ENV_PTR* env, float reward) {
    for (int seat = 0; seat < SEATS; seat++) {
        env->rewards[seat] = seat == 0 ? reward : -reward;
        env->terminals[seat] = 1.0f;
    }
    env->log.score += reward;
    env->log.slot_0_score += (1.0f + reward) / 2.0f;
    env->log.slot_1_score += (1.0f - reward) / 2.0f;
    env->log.draw_rate += reward == 0.0f ? 1.0f : 0.0f;
    env->log.episode_length += (float)env->stones;
    env->log.n += 1.0f;
    c_reset(env);
}

ENV_FN void c_step(Connect4Two ENV_PTR* env) {
    const float win = env->mover == 0 ? 1.0f : -1.0f;  // agent 0's reward if the mover wins
    const float action = env->actions[env->mover];
    const bool exists = action >= 0.0f && action < (float)COLUMNS;  // false for NaN too
    if (!exists || is_full(env, (int)action)) {
        end_episode(env, -win);
        return;
    }
    drop(env, (int)action);
    if (has_four(env->boards[env->mover])) {
        end_episode(env, win);
    } else if (env->stones == CELLS) {
        end_episode(env, 0.0f);
    } else {
        env->mover = 1 - env->mover;
        show_turn(env);
    }
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(Connect4Two ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(Connect4Two ENV_PTR* env) {
    (void)env;
}
