// rock_paper_scissors: a few rounds between two agents that see the earlier rounds. The smallest game
// in which a policy that only plays against itself goes round in circles.
//
// Both agents choose rock, paper or scissors at the same time. A win with rock is worth 1, any other
// win 0.5; the loser gets the negative. An episode has one to four rounds (env.rounds) and ends for
// both agents in the same step. Because rock pays twice as much, the unbeatable strategy is rock 1/4,
// paper 1/2, scissors 1/4, whatever was played before. Any other habit can be exploited by an
// opponent that discovers it in the earlier rounds.
//
// Each agent sees the current round, and its own and the opponent's choice of every earlier round. So a
// policy needs no recurrent state. Before the last of four rounds there are 9^3 histories: few enough
// to compute exactly how much a policy can lose (benchmarks/cycling.py).
//
// An action that is none of the three loses the round as if the other had won with rock. If both
// choose none, the round is a draw.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <stdbool.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

#define SEATS 2
#define MOST_ROUNDS 4  // per episode
#define CHOICES 3
#define NONE CHOICES            // an action that is no choice
#define PAST (SEATS * CHOICES)  // elements per earlier round: own choice, opponent's choice
#define NUMBERS (MOST_ROUNDS + (MOST_ROUNDS - 1) * PAST)  // elements of an observation

enum { ROCK, PAPER, SCISSORS };

typedef struct {
    float score;           // agent 0's rewards
    float slot_0_score;    // 1 if agent 0 won more in the episode, 0.5 for a draw, else 0
    float slot_1_score;    // as slot_0_score, for agent 1
    float draw_rate;       // 1 for a draw
    float rock;            // fraction of both agents' choices
    float paper;
    float scissors;
    float episode_length;  // rounds
    float n;
} Log;

typedef struct {
    Log log;
    ENV_ROWS(unsigned char) observations;  // (2, 22) zeros and ones: the round (4), then for each earlier
                                      // round its choice (3) and the opponent's (3)
    ENV_ROWS(float) actions;               // (2, 1) rock, paper or scissors
    ENV_ROWS(float) rewards;               // (2,)
    ENV_ROWS(float) terminals;             // (2,)
    int num_agents;
    unsigned int rng;  // unused

    int rounds;               // per episode, env.rounds: 1 to 4
    int round;                // current round, from 0
    float won;                // sum of agent 0's rewards in this episode
    int chosen[CHOICES + 1];  // counts of both agents' choices in this episode
} RockPaperScissors;

ENV_FN int choice(const RockPaperScissors ENV_PTR* env, int seat) {
    const float action = env->actions[seat];
    const bool exists = action >= 0.0f && action < (float)CHOICES;  // false for NaN too
    return exists ? (int)action : NONE;
}

// Return the reward of a round of rock, paper, scissors for the agent that chose `own`; the other
// agent gets the negative.
ENV_FN float worth(int own, int other) {
    if (own == other) {
        return 0.0f;
    }
    if (own == NONE || other == NONE) {
        return own == NONE ? -1.0f : 1.0f;
    }
    const bool wins = own == (other + 1) % CHOICES;  // paper beats rock, scissors paper, rock scissors
    const float stake = (wins ? own : other) == ROCK ? 1.0f : 0.5f;
    return wins ? stake : -stake;
}

ENV_FN void show_round(RockPaperScissors ENV_PTR* env) {
    for (int seat = 0; seat < SEATS; seat++) {
        for (int round = 0; round < MOST_ROUNDS; round++) {
            env->observations[seat * NUMBERS + round] = round == env->round;
        }
    }
}

ENV_FN void show_choice(RockPaperScissors ENV_PTR* env, int seat, int whose, int choice) {
    if (choice != NONE) {
        const int past = MOST_ROUNDS + env->round * PAST + whose * CHOICES;
        env->observations[seat * NUMBERS + past + choice] = 1;
    }
}

ENV_FN void c_reset(RockPaperScissors ENV_PTR* env) {
    for (int i = 0; i < SEATS * NUMBERS; i++) {
        env->observations[i] = 0;
    }
    for (int i = 0; i <= CHOICES; i++) {
        env->chosen[i] = 0;
    }
    env->round = 0;
    env->won = 0.0f;
    show_round(env);
}

ENV_FN void end_episode(RockPaperScissors ENV_PTR* env) {
    const float choices = (float)(SEATS * env->rounds);
    const float result = env->won > 0.0f ? 1.0f : env->won < 0.0f ? 0.0f : 0.5f;
    for (int seat = 0; seat < SEATS; seat++) {
        env->terminals[seat] = 1.0f;
    }
    env->log.score += env->won;
    env->log.slot_0_score += result;
    env->log.slot_1_score += 1.0f - result;
    env->log.draw_rate += result == 0.5f ? 1.0f : 0.0f;
    env->log.rock += (float)env->chosen[ROCK] / choices;
    env->log.paper += (float)env->chosen[PAPER] / choices;
    env->log.scissors += (float)env->chosen[SCISSORS] / choices;
    env->log.episode_length += (float)env->rounds;
    env->log.n += 1.0f;
    c_reset(env);
}

ENV_FN void c_step(RockPaperScissors ENV_PTR* env) {
    const int choices[SEATS] = {choice(env, 0), choice(env, 1)};
    for (int seat = 0; seat < SEATS; seat++) {
        env->rewards[seat] = worth(choices[seat], choices[1 - seat]);
        env->chosen[choices[seat]] += 1;
    }
    env->won += env->rewards[0];
    if (env->round == env->rounds - 1) {
        end_episode(env);
        return;
    }
    for (int seat = 0; seat < SEATS; seat++) {
        show_choice(env, seat, 0, choices[seat]);
        show_choice(env, seat, 1, choices[1 - seat]);
    }
    env->round += 1;
    show_round(env);
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(RockPaperScissors ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(RockPaperScissors ENV_PTR* env) {
    (void)env;
}
