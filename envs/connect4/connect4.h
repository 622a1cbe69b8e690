// connect4: four in a row against a scripted opponent. Copy this one for action masks.
//
// The board has 6 rows and 7 columns. The agent chooses a column, its stone falls to the lowest free
// cell, and the opponent answers within the same step. Either side may begin, at random. Four stones
// in a line win: reward 1 if the agent wins, -1 if the opponent does, 0 if the board is full. Each
// ends the episode.
//
// A move into a full column, or an action that is no column, loses the game. The mask excludes both,
// so this happens only to a policy that ignores the mask.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <math.h>
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

enum { AGENT, OPPONENT, LANDING };  // planes of an observation; the first two also number the players

typedef struct {
    float perf;            // 1 for a win, 0.5 for a draw, 0 for a loss
    float score;           // 1, 0, -1: the mean is the fraction of wins minus that of losses
    float episode_return;  // sum of rewards, which is the score
    float episode_length;  // moves of the agent
    float draws;           // 1 for a draw; with the mean score it gives wins and losses
    float n;
} Log;

typedef struct {
    Log log;
    ENV_ROWS(unsigned char) observations;  // (3, 6, 7) zeros and ones, the top row first: the agent's
                                      // stones, the opponent's, and where the next would land
    ENV_ROWS(float) actions;               // (1,) a column
    ENV_ROWS(float) rewards;               // (1,)
    ENV_ROWS(float) terminals;             // (1,)
    ENV_ROWS(unsigned char) action_mask;   // (7,) 0 where the column is full
    int num_agents;
    unsigned int rng;

    float opponent_skill;  // probability that the opponent completes or blocks a four
    int stones;            // on the board
    int tick;              // moves of the agent in this game
    int heights[COLUMNS];  // stones of each column
    uint64_t boards[2];    // stones of each player: bit 7 * column + row, rows from the bottom.
                           // Every seventh bit is 0, so no line continues in the next column.
} Connect4;

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

ENV_FN bool is_full(const Connect4 ENV_PTR* env, int column) {
    return env->heights[column] == ROWS;
}

ENV_FN void show(Connect4 ENV_PTR* env, int plane, int column, int row, unsigned char stone) {
    env->observations[plane * CELLS + (ROWS - 1 - row) * COLUMNS + column] = stone;
}

// Return a column where a stone of this player would complete a line of four, or -1 if there is
// none.
ENV_FN int find_four(const Connect4 ENV_PTR* env, int player) {
    for (int column = 0; column < COLUMNS; column++) {
        const uint64_t cell = cell_bit(column, env->heights[column]);
        if (!is_full(env, column) && has_four(env->boards[player] | cell)) {
            return column;
        }
    }
    return -1;
}

ENV_FN int random_column(Connect4 ENV_PTR* env) {
    int open[COLUMNS];
    int count = 0;
    for (int column = 0; column < COLUMNS; column++) {
        if (!is_full(env, column)) {
            open[count++] = column;
        }
    }
    return open[rand_r(&env->rng) % count];
}

// Choose the scripted opponent's column in Connect Four: win if possible, else block the agent's
// four, else at random.
ENV_FN int choose_column(Connect4 ENV_PTR* env) {
    const float looks = env->opponent_skill * 2147483648.0f;  // times 2^-31
    if ((unsigned int)rand_r(&env->rng) < (unsigned int)ceilf(looks)) {
        int column = find_four(env, OPPONENT);
        column = column < 0 ? find_four(env, AGENT) : column;
        if (column >= 0) {
            return column;
        }
    }
    return random_column(env);
}

// Drop a stone into a column of the Connect Four board that isn't full.
ENV_FN void drop(Connect4 ENV_PTR* env, int player, int column) {
    const int row = env->heights[column];
    env->boards[player] |= cell_bit(column, row);
    env->heights[column] += 1;
    env->stones += 1;
    show(env, player, column, row, 1);
    show(env, LANDING, column, row, 0);
    if (is_full(env, column)) {
        env->action_mask[column] = 0;
    } else {
        show(env, LANDING, column, row + 1, 1);
    }
}

ENV_FN void c_reset(Connect4 ENV_PTR* env) {
    for (int i = 0; i < 3 * CELLS; i++) {
        env->observations[i] = 0;
    }
    env->boards[AGENT] = 0;
    env->boards[OPPONENT] = 0;
    env->stones = 0;
    env->tick = 0;
    for (int column = 0; column < COLUMNS; column++) {
        env->heights[column] = 0;
        env->action_mask[column] = 1;
        show(env, LANDING, column, 0, 1);
    }
    if (rand_r(&env->rng) % 2 == 1) {
        drop(env, OPPONENT, choose_column(env));
    }
}

ENV_FN void end_episode(Connect4 ENV_PTR* env, float reward) {
    env->rewards[0] = reward;
    env->terminals[0] = 1.0f;
    env->log.perf += (1.0f + reward) / 2.0f;
    env->log.score += reward;
    env->log.episode_return += reward;
    env->log.episode_length += (float)env->tick;
    env->log.draws += reward == 0.0f ? 1.0f : 0.0f;
    env->log.n += 1.0f;
    c_reset(env);
}

// Drop a player's stone into a column of Connect Four that isn't full. Return true if this ended
// the game. `reward` is the agent's reward if this player wins.
ENV_FN bool move_ends(Connect4 ENV_PTR* env, int player, int column, float reward) {
    drop(env, player, column);
    const bool won = has_four(env->boards[player]);
    if (!won && env->stones < CELLS) {
        return false;
    }
    end_episode(env, won ? reward : 0.0f);
    return true;
}

ENV_FN void c_step(Connect4 ENV_PTR* env) {
    env->tick += 1;
    const float action = env->actions[0];
    const bool exists = action >= 0.0f && action < (float)COLUMNS;  // false for NaN too
    if (!exists || is_full(env, (int)action)) {
        end_episode(env, -1.0f);
        return;
    }
    if (!move_ends(env, AGENT, (int)action, 1.0f)) {
        move_ends(env, OPPONENT, choose_column(env), -1.0f);
    }
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(Connect4 ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(Connect4 ENV_PTR* env) {
    (void)env;
}
