// Connects connect4.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "connect4.h"

// 3 planes of 42 cells. The landing cells follow from the stones, but without them the empty board
// would be all 0, and upstream's policy has no biases, so it could not prefer any column.
#define OBS_SIZE 126
#define NUM_ATNS 1
#define ACT_SIZES {7}
#define OBS_TENSOR_T ByteTensor  // three planes of bytes are less memory than one of floats
#define MY_ACTION_MASK 7         // a byte for each choice of each head
#define MY_STATE_PLAIN           // the struct owns no memory
#define MY_GPU "connect4.h"      // GPUs can run these rules
#define Env Connect4
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->opponent_skill = (float)dict_get(kwargs, "opponent_skill")->value;
#ifdef PUFFER_MLX
    if (!(env->opponent_skill >= 0.0f && env->opponent_skill <= 1.0f)) {
        dict_reject(kwargs, "opponent_skill", "0 to 1");
    }
#endif
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "draws", log->draws);
}
