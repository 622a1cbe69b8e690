// Connects rock_paper_scissors.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "rock_paper_scissors.h"

#define OBS_SIZE 22  // per agent
#define NUM_ATNS 1
#define ACT_SIZES {3}
#define OBS_TENSOR_T ByteTensor
#define MY_STATE_PLAIN  // the struct owns no memory
#define MY_GPU "rock_paper_scissors.h"  // GPUs can run these rules
#define Env RockPaperScissors
#include "vecenv.h"

_Static_assert(OBS_SIZE == NUMBERS, "OBS_SIZE must be what an agent sees");

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = SEATS;
    env->rounds = (int)dict_get(kwargs, "rounds")->value;
#ifdef PUFFER_MLX
    if (env->rounds < 1 || env->rounds > MOST_ROUNDS) {
        dict_reject(kwargs, "rounds", "a whole number from 1 to 4");
    }
#endif
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->slot_0_score);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->score);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "slot_0_score", log->slot_0_score);
    dict_set(out, "slot_1_score", log->slot_1_score);
    dict_set(out, "draw_rate", log->draw_rate);
    dict_set(out, "rock", log->rock);
    dict_set(out, "paper", log->paper);
    dict_set(out, "scissors", log->scissors);
}
