// soccer: two against two on a field of 5 x 9 cells, after Littman's game of one against one (1994).
// Copy this one for teams.
//
// Agents 0 and 1 are team 0, agents 2 and 3 are team 1: self-play and matches expect the first half of
// the agents to play the second. Each agent sees the field as if its team played to the right, so one
// policy can play all four. A team shares its rewards: both agents get the same, the other team gets
// the negative, and an episode ends for all four at once.
//
// In every step all four choose an action: stay, move one cell forward, back, left or right, or pass.
// They act one after the other in random order. One of them has the ball. An agent that carries it
// forward out of the field in one of the three middle rows scores: +1 for its team, -1 for the other.
// After 60 steps without a goal the episode is a draw, 0 for all. A cell holds one agent. An agent that
// moves into an occupied cell stays where it is; if the two are of different teams and one has the
// ball, the ball changes hands. A pass gives the ball to the team-mate if it is at most three rows and
// three columns away. An agent that passes without the ball stays.
//
// An episode begins with each team at random cells of its half, and the ball with one of the four.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <stdbool.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

#define TEAMS 2
#define TEAM 2  // agents per team
#define SEATS (TEAMS * TEAM)
#define ROWS 5
#define COLUMNS 9
#define CELLS (ROWS * COLUMNS)
#define HALF 4        // columns of each half; no agent begins in the middle column
#define GOAL_TOP 1    // rows of both goals
#define GOAL_BOTTOM 3
#define REACH 3       // largest distance of a pass, in rows and in columns
#define LIMIT 60      // steps per episode
#define CLOCK 6       // phases of an episode; an agent sees the current one
#define NUMBERS (PLANES * CELLS + CLOCK)  // elements of an observation

enum { STAY, FORWARD, BACK, LEFT, RIGHT, PASS, CHOICES };
enum { SELF, MATE, OTHERS, BALL, PLANES };  // planes of an observation

typedef struct {
    float score;           // 1, 0, -1 for team 0
    float slot_0_score;    // 1 for a win of team 0, 0.5 for a draw, 0 for a loss
    float slot_1_score;    // as slot_0_score, for team 1
    float draw_rate;       // 1 for a draw
    float episode_length;  // steps
    float n;
} Log;

// A position on the field: rows from the top, columns from team 0's end.
typedef struct {
    int row;
    int column;
} Cell;

typedef struct {
    Log log;
    ENV_ROWS(unsigned char) observations;  // (4, 186) zeros and ones: four planes (5, 9), then the time (6)
    ENV_ROWS(float) actions;               // (4, 1): the choices above
    ENV_ROWS(float) rewards;               // (4,)
    ENV_ROWS(float) terminals;             // (4,)
    int num_agents;
    unsigned int rng;

    Cell cells[SEATS];
    int holder;  // the agent that has the ball
    int tick;    // steps of this episode
} Soccer;

ENV_FN int team_of(int seat) {
    return seat / TEAM;
}

// Return the direction in which a soccer team plays: 1 towards higher columns, -1 towards lower
// ones.
ENV_FN int ahead(int team) {
    return team == 0 ? 1 : -1;
}

// Return the index of a player's cell on the soccer field as a team sees it: the field is rotated
// by 180 degrees for team 1.
ENV_FN int seen_cell(const Soccer ENV_PTR* env, int seat, int team) {
    const int index = env->cells[seat].row * COLUMNS + env->cells[seat].column;
    return team == 0 ? index : CELLS - 1 - index;
}

// Write the observations of all four soccer players. They differ within a team only in the planes
// SELF and MATE.
ENV_FN void write_observations(Soccer ENV_PTR* env) {
    for (int i = 0; i < SEATS * NUMBERS; i++) {
        env->observations[i] = 0;
    }
    for (int seat = 0; seat < SEATS; seat++) {
        const int own = seat * NUMBERS;  // index of the agent's row
        const int team = team_of(seat);
        for (int other = 0; other < SEATS; other++) {
            const int plane = other == seat ? SELF : team_of(other) == team ? MATE : OTHERS;
            env->observations[own + plane * CELLS + seen_cell(env, other, team)] = 1;
        }
        const int ball = seen_cell(env, env->holder, team);
        env->observations[own + BALL * CELLS + ball] = 1;
        env->observations[own + PLANES * CELLS + env->tick * CLOCK / LIMIT] = 1;
    }
}

// Return the index of the agent that stands in a cell of the soccer field, or -1 if the cell is
// empty.
ENV_FN int standing(const Soccer ENV_PTR* env, int row, int column) {
    for (int seat = 0; seat < SEATS; seat++) {
        if (env->cells[seat].row == row && env->cells[seat].column == column) {
            return seat;
        }
    }
    return -1;
}

ENV_FN void c_reset(Soccer ENV_PTR* env) {
    for (int seat = 0; seat < SEATS; seat++) {
        env->cells[seat].row = env->cells[seat].column = -1;
    }
    for (int seat = 0; seat < SEATS; seat++) {
        int row;
        int column;
        do {
            const int depth = rand_r(&env->rng) % HALF;
            row = rand_r(&env->rng) % ROWS;
            column = team_of(seat) == 0 ? depth : COLUMNS - 1 - depth;
        } while (standing(env, row, column) >= 0);
        env->cells[seat].row = row;
        env->cells[seat].column = column;
    }
    env->holder = rand_r(&env->rng) % SEATS;
    env->tick = 0;
    write_observations(env);
}

// End an episode of two teams: team 0 gets this reward, and team 1 its negative.
ENV_FN void end_episode(Soccer ENV_PTR* env, float reward) {
    for (int seat = 0; seat < SEATS; seat++) {
        env->rewards[seat] = team_of(seat) == 0 ? reward : -reward;
        env->terminals[seat] = 1.0f;
    }
    env->log.score += reward;
    env->log.slot_0_score += (1.0f + reward) / 2.0f;
    env->log.slot_1_score += (1.0f - reward) / 2.0f;
    env->log.draw_rate += reward == 0.0f ? 1.0f : 0.0f;
    env->log.episode_length += (float)env->tick;
    env->log.n += 1.0f;
    c_reset(env);
}

ENV_FN bool in_reach(const Soccer ENV_PTR* env, int seat, int other) {
    const int rows = env->cells[seat].row - env->cells[other].row;
    const int columns = env->cells[seat].column - env->cells[other].column;
    return rows <= REACH && rows >= -REACH && columns <= REACH && columns >= -REACH;
}

ENV_FN void pass_ball(Soccer ENV_PTR* env, int seat) {
    const int mate = team_of(seat) * TEAM + (seat + 1) % TEAM;  // TEAM is 2
    if (env->holder == seat && in_reach(env, seat, mate)) {
        env->holder = mate;
    }
}

// Move a soccer player by one cell in its team's view of the field. Return true if it scores a
// goal.
ENV_FN bool walk(Soccer ENV_PTR* env, int seat, int action) {
    const int forward = ahead(team_of(seat));
    const int ahead_by = action == FORWARD ? forward : action == BACK ? -forward : 0;
    const int right_by = action == RIGHT ? forward : action == LEFT ? -forward : 0;
    const int column = env->cells[seat].column + ahead_by;
    const int row = env->cells[seat].row + right_by;
    const bool before_goal = row >= GOAL_TOP && row <= GOAL_BOTTOM;
    if (column < 0 || column >= COLUMNS) {
        return action == FORWARD && before_goal && env->holder == seat;
    }
    if (row < 0 || row >= ROWS) {
        return false;
    }
    const int other = standing(env, row, column);
    if (other < 0) {
        env->cells[seat].row = row;
        env->cells[seat].column = column;
    } else if (team_of(other) != team_of(seat)) {  // opponents meet
        if (env->holder == seat) {
            env->holder = other;
        } else if (env->holder == other) {
            env->holder = seat;
        }
    }
    return false;
}

// Draw a random order of the agents (Fisher-Yates shuffle).
ENV_FN void draw_order(Soccer ENV_PTR* env, int ENV_PTR* order) {
    for (int i = 0; i < SEATS; i++) {
        order[i] = i;
    }
    for (int i = 0; i < SEATS - 1; i++) {
        const int j = i + rand_r(&env->rng) % (SEATS - i);
        const int seat = order[i];
        order[i] = order[j];
        order[j] = seat;
    }
}

// Advance the soccer game by one step. An action outside 0..5 counts as STAY.
ENV_FN void c_step(Soccer ENV_PTR* env) {
    int order[SEATS];
    draw_order(env, order);
    env->tick += 1;
    for (int i = 0; i < SEATS; i++) {
        const int seat = order[i];
        const float action = env->actions[seat];
        const bool exists = action > 0.0f && action < (float)CHOICES;  // false for NaN too
        const int choice = exists ? (int)action : STAY;
        if (choice == PASS) {
            pass_ball(env, seat);
        } else if (choice != STAY && walk(env, seat, choice)) {
            end_episode(env, team_of(seat) == 0 ? 1.0f : -1.0f);
            return;
        }
    }
    if (env->tick == LIMIT) {
        end_episode(env, 0.0f);
        return;
    }
    write_observations(env);
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(Soccer ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(Soccer ENV_PTR* env) {
    (void)env;
}
