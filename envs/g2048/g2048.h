// g2048: the game 2048: slide the tiles of a 4 x 4 board; equal ones merge. As in PufferLib 4.0.
//
// A cell holds 0 or the exponent k of its tile 2^k, and is one observation element. Actions: 0 up,
// 1 down, 2 left, 3 right. A move that changes nothing costs 0.05 and spawns no tile. An episode
// ends when no move is possible (-1) or at the time limit: 1000 steps, more for an environment that
// once reached 2^10 or has a high score.
//
// A fraction of the episodes (scaffolding_ratio) begins with one or two large tiles instead of two
// small ones, to train positions that normal play rarely reaches. These episodes aren't logged.
//
// The board is four words with a byte per cell, and all lines slide at once: the four bytes of a word
// belong to four lines, and every operation below works on all of them. No cell exceeds 17: to merge
// two tiles of 2^17, the second would have to grow in the 15 other cells, which reach 2^16 at most.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#define TABLE static const
#endif

enum { UP, DOWN, LEFT, RIGHT };

#define SIZE 4
#define SHORTEST 1000                 // steps: smallest time limit
#define LARGEST_EXPONENT 18           // size of the table below; play reaches 17
#define NOTHING_MOVED (-0.05f)
#define GAME_OVER (-1.0f)
#define RANDOM_LARGEST 2147483647.0f  // largest result of rand_r

// Reward for merging into 2^k: 0.05, and from 2^7 on 0.03 * (k - 6)^1.5 more, rounded as upstream
// rounds it. Upstream's table ends at 17. Entry 0 is for cells that didn't merge.
#define BONUS(x) (0.05f + (x) * 0.03f)
TABLE float MERGE_REWARD[LARGEST_EXPONENT + 1] = {
    0.0f,          0.05f,         0.05f,         0.05f,         0.05f,
    0.05f,         0.05f,         BONUS(1.0f),   BONUS(2.83f),  BONUS(5.20f),
    BONUS(8.0f),   BONUS(11.18f), BONUS(14.70f), BONUS(18.52f), BONUS(22.63f),
    BONUS(27.0f),  BONUS(31.62f), BONUS(36.48f), BONUS(41.57f),
};

typedef struct {
    float perf;               // 0.8 * largest tile / 2^16, at most 1
    float score;              // largest tile
    float merge_score;        // sum of all merged tiles: the score of the original game
    float episode_return;     // sum of unclipped rewards
    float episode_length;     // steps
    float lifetime_max_tile;  // largest tile this environment ever reached
    float reached_16384;
    float reached_32768;
    float reached_65536;
    float reached_131072;
    float n;
} Log;

typedef struct {
    Log log;
    ENV_ROWS(unsigned char) observations;  // (16,) the board row by row
    ENV_ROWS(float) actions;               // (1,)
    ENV_ROWS(float) rewards;               // (1,)
    ENV_ROWS(float) terminals;             // (1,)
    int num_agents;
    unsigned int rng;

    float scaffolding_ratio;  // constant after my_init
    int lifetime_max;         // largest exponent of the logged episodes so far, before a spawn

    uint32_t rows[SIZE];  // cell (row, col) is byte col of rows[row], counted from the lowest
    bool scaffold;
    int tick;
    int max_ticks;
    int score;     // merge score
    int largest;   // largest exponent on the board
    int max_tile;  // as largest, before the last spawn; 0 before the first move
    float episode_return;
} G2048;

// ---- Four bytes at a time, each less than 128 ---------------------------------------------------

// Return a word with 0x80 in every byte where `word` has a 0, and 0 in the other bytes.
ENV_FN uint32_t zeros(uint32_t word) {
    return (0x80808080u - word) & 0x80808080u;
}

// Return a word with 0x7F in every byte where `flags` has 0x80, and 0 in the other bytes.
ENV_FN uint32_t mask_of(uint32_t flags) {
    return flags - (flags >> 7);
}

// Transpose a board of SIZE words with SIZE bytes each: byte i of word j becomes byte j of word i.
ENV_FN void transpose(const uint32_t ENV_PTR* in, uint32_t ENV_PTR* out) {
    const uint32_t even = 0x00FF00FFu;
    const uint32_t odd = 0xFF00FF00u;
    const uint32_t a = (in[0] & even) | (in[1] & even) << 8;
    const uint32_t b = (in[0] & odd) >> 8 | (in[1] & odd);
    const uint32_t c = (in[2] & even) | (in[3] & even) << 8;
    const uint32_t d = (in[2] & odd) >> 8 | (in[3] & odd);
    out[0] = (a & 0xFFFFu) | c << 16;
    out[1] = (b & 0xFFFFu) | d << 16;
    out[2] = a >> 16 | (c & 0xFFFF0000u);
    out[3] = b >> 16 | (d & 0xFFFF0000u);
}

// ---- Sliding ------------------------------------------------------------------------------------

// Move each byte of the word `far` to the same place of the word `near` if near's byte is 0: tiles
// of 2048 slide into empty cells.
ENV_FN void close_gap(uint32_t ENV_PTR* near, uint32_t ENV_PTR* far) {
    const uint32_t gap = mask_of(zeros(*near));
    *near |= *far & gap;
    *far &= ~gap;
}

// Slide and merge the tiles of all SIZE lines of a 2048 board at once towards line[0]; word i has
// cell i of each line. merged[i], one of SIZE - 1 words, gets the new exponents where cells i and i
// + 1 merged, and 0 elsewhere. A merged tile doesn't merge again.
ENV_FN void slide(uint32_t ENV_PTR* line, uint32_t ENV_PTR* merged) {
    for (int end = SIZE - 1; end > 0; end--) {  // bubble sort: gaps to the end, tiles in order
        for (int i = 0; i < end; i++) {
            close_gap(&line[i], &line[i + 1]);
        }
    }
    for (int i = 0; i < SIZE - 1; i++) {
        const uint32_t flags = zeros(line[i] ^ line[i + 1]) & ~zeros(line[i]);
        const uint32_t equal = mask_of(flags);
        line[i] += flags >> 7;
        merged[i] = line[i] & equal;
        for (int j = i + 1; j < SIZE - 1; j++) {
            line[j] = (line[j] & ~equal) | (line[j + 1] & equal);
        }
        line[SIZE - 1] &= ~equal;
    }
}

// Add the points of a move's merged tiles to the score of 2048, and return their reward. The order
// of the float sum is upstream's.
ENV_FN float count_merges(G2048 ENV_PTR* env, const uint32_t ENV_PTR* merged) {
    const uint32_t any = merged[0] | merged[1] | merged[2];
    float reward = 0.0f;
    for (int line = 0; line < 32; line += 8) {
        if ((any >> line & 0xFF) == 0) {
            continue;
        }
        for (int i = 0; i < SIZE - 1; i++) {
            const int exponent = (int)(merged[i] >> line & 0xFF);
            reward += MERGE_REWARD[exponent];
            env->score += exponent == 0 ? 0 : 1 << exponent;
            env->largest = exponent > env->largest ? exponent : env->largest;
        }
    }
    return reward;
}

// Move the tiles of a 2048 board in a direction, and add the reward of its merges to *reward.
// Return true if the board changed.
ENV_FN bool move(G2048 ENV_PTR* env, int action, float ENV_PTR* reward) {
    const bool across = action >= LEFT;
    const bool backwards = action == DOWN || action == RIGHT;
    uint32_t turned[SIZE];
    uint32_t line[SIZE];
    uint32_t merged[SIZE - 1];
    transpose(env->rows, turned);
    const uint32_t ENV_PTR* from = across ? turned : env->rows;
    for (int i = 0; i < SIZE; i++) {
        line[i] = from[backwards ? SIZE - 1 - i : i];
    }
    slide(line, merged);
    uint32_t change = 0;
    uint32_t back[SIZE];
    for (int i = 0; i < SIZE; i++) {
        back[i] = line[backwards ? SIZE - 1 - i : i];
        change |= back[i] ^ from[i];
    }
    if (change == 0) {
        return false;
    }
    if (across) {
        transpose(back, env->rows);
    } else {
        for (int row = 0; row < SIZE; row++) {
            env->rows[row] = back[row];
        }
    }
    *reward += count_merges(env, merged);
    return true;
}

// ---- Spawning -----------------------------------------------------------------------------------

#define ONES 0x0101010101010101u

// Return the empty cells of two rows of a 2048 board: 1 in every byte that is 0, and 0 in the other
// bytes.
ENV_FN uint64_t empty_cells(uint32_t first, uint32_t second) {
    return ((uint64_t)zeros(second) << 32 | zeros(first)) >> 7;
}

// Return how many bytes of the word `sums` are n or less. All bytes are at most 16.
ENV_FN int count_up_to(uint64_t sums, int n) {
    const uint64_t flags = (((uint64_t)n * ONES | 0x80 * ONES) - sums) & 0x80 * ONES;
    return (int)((flags >> 7) * ONES >> 56);
}

// Put a new tile into a random empty cell of the 2048 board, if there is one. Return the number of
// remaining empty cells.
//
// Multiplying by ONES turns byte i into the sum of bytes 0 to i, here the number of empty cells up
// to cell i. The n-th empty cell, counted from 0, is the first whose sum exceeds n.
ENV_FN int spawn(G2048 ENV_PTR* env, int exponent) {
    const uint64_t top = empty_cells(env->rows[0], env->rows[1]);
    const uint64_t bottom = empty_cells(env->rows[2], env->rows[3]);
    const int above = (int)(top * ONES >> 56);
    const int empty = above + (int)(bottom * ONES >> 56);
    if (empty == 0) {
        return 0;
    }
    const int n = rand_r(&env->rng) % empty;
    const uint64_t sums = bottom * ONES + (uint64_t)above * ONES;
    const int cell = count_up_to(top * ONES, n) + count_up_to(sums, n);
    env->rows[cell / SIZE] |= (uint32_t)exponent << 8 * (cell % SIZE);
    env->largest = exponent > env->largest ? exponent : env->largest;
    return empty - 1;
}

// Return a random exponent for a new tile of 2048: the tile is 2 with probability 0.9, else 4.
ENV_FN int draw_tile(G2048 ENV_PTR* env) {
    return rand_r(&env->rng) % 10 == 0 ? 2 : 1;
}

// Put one or two large tiles on a new 2048 board: the larger, the more the environment has reached
// before. (Upstream's comment says that they start at 8192; its code starts at 4096, as this does.)
ENV_FN void spawn_scaffold(G2048 ENV_PTR* env) {
    if (env->lifetime_max < 14) {
        const int exponent = 12 + rand_r(&env->rng) % 5;
        spawn(env, exponent > env->lifetime_max ? exponent : env->lifetime_max);
        return;
    }
    const int base = env->lifetime_max >= 16 ? 15 : 14;
    const int choice = rand_r(&env->rng) % 4;
    const int first = base + choice % 2;
    spawn(env, first);
    if (choice >= 2) {
        spawn(env, first - 1);
    }
}

// ---- Episodes -----------------------------------------------------------------------------------

ENV_FN void write_observations(G2048 ENV_PTR* env) {
    for (int cell = 0; cell < SIZE * SIZE; cell++) {
        env->observations[cell] = (unsigned char)(env->rows[cell / SIZE] >> 8 * (cell % SIZE));
    }
}

ENV_FN void reset_episode(G2048 ENV_PTR* env) {
    for (int row = 0; row < SIZE; row++) {
        env->rows[row] = 0;
    }
    env->tick = 0;
    env->max_ticks = SHORTEST;
    env->score = 0;
    env->largest = 0;
    env->max_tile = 0;
    env->episode_return = 0.0f;
    env->scaffold = (float)rand_r(&env->rng) / RANDOM_LARGEST < env->scaffolding_ratio;
    if (env->scaffold) {
        spawn_scaffold(env);
        return;
    }
    for (int i = 0; i < 2; i++) {
        spawn(env, draw_tile(env));
    }
}

ENV_FN void add_log(G2048 ENV_PTR* env) {
    env->lifetime_max = env->max_tile > env->lifetime_max ? env->max_tile : env->lifetime_max;
    const float tile = (float)(1 << env->max_tile);
    const float perf = 0.8f * tile / 65536.0f;
    env->log.perf += perf < 1.0f ? perf : 1.0f;
    env->log.score += tile;
    env->log.merge_score += (float)env->score;
    env->log.episode_return += env->episode_return;
    env->log.episode_length += (float)env->tick;
    env->log.lifetime_max_tile += (float)(1 << env->lifetime_max);
    env->log.reached_16384 += env->max_tile >= 14 ? 1.0f : 0.0f;
    env->log.reached_32768 += env->max_tile >= 15 ? 1.0f : 0.0f;
    env->log.reached_65536 += env->max_tile >= 16 ? 1.0f : 0.0f;
    env->log.reached_131072 += env->max_tile >= 17 ? 1.0f : 0.0f;
    env->log.n += 1.0f;
}

// Return true if a full 2048 board has two equal tiles side by side, so that a move is possible.
ENV_FN bool can_merge(const G2048 ENV_PTR* env) {
    uint32_t pairs = 0;
    for (int row = 0; row < SIZE; row++) {
        const uint32_t cells = env->rows[row];
        pairs |= zeros((cells ^ cells >> 8) & 0x00FFFFFFu) & 0x00808080u;
        pairs |= row > 0 ? zeros(cells ^ env->rows[row - 1]) : 0;
    }
    return pairs != 0;
}

// Return the time limit of an episode of 2048 in steps: longer after 2^10 was reached once, or with
// a high score.
ENV_FN int time_limit(const G2048 ENV_PTR* env) {
    const int grown = SHORTEST * (env->lifetime_max > 9 ? env->lifetime_max - 8 : 1);
    return grown > env->score / 4 ? grown : env->score / 4;
}

ENV_FN void c_reset(G2048 ENV_PTR* env) {
    reset_episode(env);
    write_observations(env);
}

ENV_FN void c_step(G2048 ENV_PTR* env) {
    float reward = 0.0f;
    bool over = false;  // stays false without a spawn: a board without moves ended its episode
    env->tick += 1;
    if (move(env, (int)env->actions[0], &reward)) {
        env->max_tile = env->largest;
        over = spawn(env, draw_tile(env)) == 0 && !can_merge(env);
        env->max_ticks = time_limit(env);
    } else {
        reward = NOTHING_MOVED;
    }
    reward += over ? GAME_OVER : 0.0f;
    env->rewards[0] = reward;
    env->episode_return += reward;
    if (over || env->tick >= env->max_ticks) {
        env->terminals[0] = 1.0f;
        if (!env->scaffold) {
            add_log(env);
        }
        reset_episode(env);
    }
    write_observations(env);
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(G2048 ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(G2048 ENV_PTR* env) {
    (void)env;
}
