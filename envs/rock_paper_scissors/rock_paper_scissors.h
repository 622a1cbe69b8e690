// rock_paper_scissors: a few rounds of it, two agents who remember the earlier ones. The smallest game
// on which a policy that plays only against itself goes round in circles.
//
// Both agents choose at once: rock, paper or scissors. Who wins a round with rock gets 1, who wins it
// with another choice 0.5; the other one loses as much. An episode is one to four rounds, as [env]
// says, and over for both in the same step. As a win with rock is worth twice as much, the choices
// that nothing beats are rock 1/4, paper 1/2, scissors 1/4, whatever has been played: any other habit
// can be exploited by who finds it out, and the rounds before are there to find it out.
//
// Each agent sees which round it is, and of every earlier round of the episode its own choice and
// the other's. So a policy needs no memory of its own, and before the last of four rounds there are
// 9^3 pasts: few enough to compute exactly how much a policy can lose (benchmarks/cycling.py).
//
// An action that is none of the three loses the round as if the other had won with rock; if both
// choose none, nobody wins.

#ifndef ENV_FN  // for a CPU; where a GPU runs these rules, its compiler is told otherwise
#include <stdbool.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

#define SEATS 2
#define MOST_ROUNDS 4  // of an episode
#define CHOICES 3
#define NONE CHOICES            // an action that is no choice
#define PAST (SEATS * CHOICES)  // numbers about an earlier round: own choice, other's
#define NUMBERS (MOST_ROUNDS + (MOST_ROUNDS - 1) * PAST)  // of an agent's observation

enum { ROCK, PAPER, SCISSORS };

typedef struct {
    float score;           // agent 0's rewards
    float slot_0_score;    // 1 if agent 0 got more in the episode, 0.5 for as much, 0 for less
    float slot_1_score;    // the same of agent 1
    float draw_rate;       // 1 if both got as much
    float rock;            // part of both agents' choices
    float paper;
    float scissors;
    float episode_length;  // rounds
    float n;
} Log;

typedef struct {
    Log log;
    ENV_ROWS(unsigned char) observations;  // (2, 22) zeros and ones: the round (4), then of each earlier
                                      // one what it chose (3) and what the other did (3)
    ENV_ROWS(float) actions;               // (2, 1) rock, paper or scissors
    ENV_ROWS(float) rewards;               // (2,)
    ENV_ROWS(float) terminals;             // (2,)
    int num_agents;
    unsigned int rng;  // nothing is drawn

    int rounds;               // of an episode, from [env]: 1 to 4
    int round;                // that is to be played, from 0
    float won;                // by agent 0 in this episode
    int chosen[CHOICES + 1];  // by both agents in this episode
} RockPaperScissors;

ENV_FN int choice(const RockPaperScissors ENV_PTR* env, int seat) {
    const float action = env->actions[seat];
    const bool exists = action >= 0.0f && action < (float)CHOICES;  // false for NaN too
    return exists ? (int)action : NONE;
}

// What a round is worth to who chose the first; to the other it is the negative.
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

// Pictures are made in Python from the observation.
ENV_FN void c_render(RockPaperScissors ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(RockPaperScissors ENV_PTR* env) {
    (void)env;
}
