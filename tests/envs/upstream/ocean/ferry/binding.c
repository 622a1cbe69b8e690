#include "ferry.h"
#define OBS_SIZE 1
#define NUM_ATNS 1
#define ACT_SIZES {2}
#define OBS_TENSOR_T FloatTensor
#define MY_VEC_INIT
#define Env Ferry
#include "vecenv.h"

Env* my_vec_init(int* num_envs_out, int* buffer_env_starts, int* buffer_env_counts,
                 Dict* vec_kwargs, Dict* env_kwargs) {
    (void)env_kwargs;
    int total_agents = (int)dict_get(vec_kwargs, "total_agents")->value;
    int num_buffers = (int)dict_get(vec_kwargs, "num_buffers")->value;
    int each = total_agents / num_buffers;
    Env* envs = (Env*)calloc(total_agents, sizeof(Env));
    for (int i = 0; i < total_agents; i++) {
        envs[i].num_agents = 1;
        envs[i].rng = (unsigned int*)calloc(1, sizeof(unsigned int));
        *envs[i].rng = i;
    }
    for (int b = 0; b < num_buffers; b++) {
        buffer_env_starts[b] = b * each;
        buffer_env_counts[b] = each;
    }
    *num_envs_out = total_agents;
    return envs;
}

void my_init(Env* env, Dict* kwargs) {
    (void)kwargs;
    env->num_agents = 1;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
