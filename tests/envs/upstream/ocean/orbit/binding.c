#include "orbit.h"
#define OBS_SIZE 8
#define NUM_ATNS 1
#define ACT_SIZES {5}
#define OBS_TENSOR_T FloatTensor

#define Env Orbit
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->thrust = dict_get(kwargs, "thrust")->value;
    env->width = dict_get(kwargs, "width")->value;
    env->max_steps = dict_get(kwargs, "max_steps")->value;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "lost", log->lost);
}
