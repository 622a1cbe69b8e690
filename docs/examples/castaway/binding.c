#include "castaway.h"
#define OBS_SIZE ((VIEW * VIEW - 1) * CELLS + ITEMS + 2)
#define NUM_ATNS 1
#define ACT_SIZES {6}
#define OBS_TENSOR_T FloatTensor
#define MY_STATE_PLAIN
#define MY_GPU "castaway.h"
#define Env Castaway
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->longest = dict_get(kwargs, "longest")->value;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);  // deeds, of 4
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "axe", log->deeds[MADE_AXE]);
    dict_set(out, "raft", log->deeds[MADE_RAFT]);
}
