#include "faulty.h"

#define OBS_SIZE 4
#define NUM_ATNS 1
#define ACT_SIZES {3}
#define OBS_TENSOR_T FloatTensor
#ifdef MASKED
#define MY_ACTION_MASK 3
#endif
#ifndef STATELESS
#define MY_STATE_PLAIN
#endif
#define Env Faulty
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->fault = (int)dict_get(kwargs, "fault")->value;
    if (env->fault == CRASH_IN_INIT) {
        *(volatile int*)8 = 1;
    }
    if (env->fault == OWN_MEMORY) {
        env->own = calloc(1, sizeof(float));
    }
}

void my_log(Log* log, Dict* out) {
#ifndef SCORELESS
    dict_set(out, "score", log->score);
#endif
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
