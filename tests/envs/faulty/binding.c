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
#ifdef VARIES
#define MY_VEC_INIT
#endif
#define Env Faulty
#include "vecenv.h"

#ifdef VARIES
// Create environments with several agents. Only the first agent acts. If VARIES is 2, the number of
// agents depends on how often this function was called, which no seed controls; otherwise on the
// number of buffers.
Env* my_vec_init(int* num_envs_out, int* buffer_env_starts, int* buffer_env_counts,
                 Dict* vec_kwargs, Dict* env_kwargs) {
    static int calls = 0;
    const int buffers = (int)dict_get(vec_kwargs, "num_buffers")->value;
    const int each = (int)dict_get(vec_kwargs, "total_agents")->value / buffers;
    const int size = VARIES == 2 ? 1 + calls++ % 3 : buffers;
    Env* envs = (Env*)calloc(each * buffers, sizeof(Env));
    int count = 0;
    for (int b = 0; b < buffers; b++) {
        buffer_env_starts[b] = count;
        for (int agents = 0; agents < each; agents += size) {
            envs[count].num_agents = each - agents < size ? each - agents : size;
            envs[count].fault = (int)dict_get(env_kwargs, "fault")->value;
            envs[count].rng = count;
            count++;
        }
        buffer_env_counts[b] = count - buffer_env_starts[b];
    }
    *num_envs_out = count;
    return envs;
}
#endif

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->fault = (int)dict_get(kwargs, "fault")->value;
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
