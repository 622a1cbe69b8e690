#include "drift.h"
#define OBS_SIZE 3
#define NUM_ATNS 2
#define ACT_SIZES {1, 1}  // all 1: continuous
#define OBS_TENSOR_T FloatTensor
#define MY_STATE_PLAIN
#define Env Drift
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->length = (int)dict_get(kwargs, "length")->value;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);
}
