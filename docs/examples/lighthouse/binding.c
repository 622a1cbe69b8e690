#include "lighthouse.h"
#define OBS_SIZE 18
#define NUM_ATNS 1
#define ACT_SIZES {3}
#define OBS_TENSOR_T FloatTensor
#define MY_STATE_PLAIN  // the struct owns no memory, so a run can be resumed in the middle of a night
#define Env Lighthouse
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->turn = dict_get(kwargs, "turn")->value;
    env->width = dict_get(kwargs, "width")->value;
    env->speed = dict_get(kwargs, "speed")->value;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);  // ships saved in a night
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
