// Connects connect4_two.h to the batch stepper; ../squared/binding.c explains each line.

#include "connect4_two.h"

#define OBS_SIZE 126  // per agent, as in ../connect4
#define NUM_ATNS 1
#define ACT_SIZES {7}
#define OBS_TENSOR_T ByteTensor
#define MY_ACTION_MASK 7
#define MY_STATE_PLAIN  // the struct points at nothing of its own
#define Env Connect4Two
#include "vecenv.h"

// [env] has no keys.
void my_init(Env* env, Dict* kwargs) {
    (void)kwargs;
    env->num_agents = SEATS;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->slot_0_score);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->score);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "slot_0_score", log->slot_0_score);
    dict_set(out, "slot_1_score", log->slot_1_score);
    dict_set(out, "draw_rate", log->draw_rate);
}
