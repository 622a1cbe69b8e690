#include <stdbool.h>
#include "metro.h"
#define OBS_SIZE 36
#define NUM_ATNS 1
#define ACT_SIZES {13}
#define OBS_TENSOR_T PrecisionTensor
#define MY_ACTION_MASK 13
#define MY_VEC_INIT
#define MY_VEC_CLOSE
#define MY_SHARED
#define MY_SHARED_CLOSE
#define MY_GET
#define MY_PUT
#define Env Metro
#include "vecenv.h"

// Environments of 1, 2, 3, 1, 2, 3, ... agents, the last of a buffer as large as there is room.
Env* my_vec_init(int* num_envs_out, int* buffer_env_starts, int* buffer_env_counts,
                 Dict* vec_kwargs, Dict* env_kwargs) {
    int total_agents = (int)dict_get(vec_kwargs, "total_agents")->value;
    int num_buffers = (int)dict_get(vec_kwargs, "num_buffers")->value;
    int agents_per_buffer = total_agents / num_buffers;
    int max_steps = (int)dict_get(env_kwargs, "max_steps")->value;

    Network* network = load_network("resources/metro/lines.txt");
    Env* envs = (Env*)calloc(total_agents, sizeof(Env));
    int num_envs = 0;
    for (int buf = 0; buf < num_buffers; buf++) {
        buffer_env_starts[buf] = num_envs;
        for (int agents = 0; agents < agents_per_buffer; num_envs++) {
            Env* env = &envs[num_envs];
            int room = agents_per_buffer - agents;
            int wanted = 1 + num_envs % MOST_AGENTS;
            env->num_agents = wanted < room ? wanted : room;
            env->rng = num_envs;
            env->network = network;
            env->max_steps = max_steps;
            agents += env->num_agents;
        }
        buffer_env_counts[buf] = num_envs - buffer_env_starts[buf];
    }
    *num_envs_out = num_envs;
    return (Env*)realloc(envs, num_envs * sizeof(Env));
}

void my_vec_close(Env* envs) {
    free((void*)envs[0].network);
}

// Set up one environment from its settings, as the default my_vec_init calls it; this binding has its own.
void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->max_steps = (int)dict_get(kwargs, "max_steps")->value;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "illegal", log->illegal);
}

void* my_shared(void* env, Dict* kwargs) {
    (void)kwargs;
    return (void*)((Env*)env)->network;
}

void my_shared_close(void* env) {
    (void)env;
}

void* my_get(void* env, Dict* out) {
    dict_set(out, "tick", ((Env*)env)->tick);
    return NULL;
}

int my_put(void* env, Dict* kwargs) {
    ((Env*)env)->max_steps = (int)dict_get(kwargs, "max_steps")->value;
    return 0;
}
