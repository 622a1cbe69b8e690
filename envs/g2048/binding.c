// Connects g2048.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "g2048.h"

#define OBS_SIZE 16
#define NUM_ATNS 1
#define ACT_SIZES {4}
#define OBS_TENSOR_T ByteTensor
#define MY_OBS_FULL
#define MY_STATE_PLAIN  // the struct owns no memory
#define MY_GPU "g2048.h"  // GPUs can run these rules
#define Env G2048
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->lifetime_max = 0;
    env->scaffolding_ratio = (float)dict_get(kwargs, "scaffolding_ratio")->value;
#ifdef PUFFER_MLX
    if (!(env->scaffolding_ratio >= 0.0f && env->scaffolding_ratio <= 1.0f)) {
        dict_reject(kwargs, "scaffolding_ratio", "0 to 1");
    }
#endif
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "merge_score", log->merge_score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "lifetime_max_tile", log->lifetime_max_tile);
    dict_set(out, "reached_16384", log->reached_16384);
    dict_set(out, "reached_32768", log->reached_32768);
    dict_set(out, "reached_65536", log->reached_65536);
    dict_set(out, "reached_131072", log->reached_131072);
}
