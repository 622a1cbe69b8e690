#include "recall.h"
#define OBS_SIZE 1
#define NUM_ATNS 1
#define ACT_SIZES {2}
#define OBS_TENSOR_T FloatTensor
#define MY_STATE_PLAIN
#define Env Recall
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->length = (int)dict_get(kwargs, "length")->value;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);
}
