// Connects connect4_two.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "connect4_two.h"

#define OBS_SIZE 126  // per agent, as in ../connect4
#define NUM_ATNS 1
#define ACT_SIZES {7}
#define OBS_TENSOR_T ByteTensor
#define MY_ACTION_MASK 7
#define MY_STATE_PLAIN  // the struct owns no memory
#define MY_GPU "connect4_two.h"  // GPUs can run these rules
#define Env Connect4Two
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = SEATS;
    // Runs from before there was this key are without it.
    const DictItem* item = dict_get_unsafe(kwargs, "opening_stones");
    const double stones = item == NULL ? 0.0 : item->value;
    env->opening_stones = stones >= 0.0 && stones <= 24.0 ? (int)stones : 0;
#ifdef PUFFER_MLX
    if (env->opening_stones != stones) {
        dict_reject(kwargs, "opening_stones", "a whole number, 0 to 24");
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
}
