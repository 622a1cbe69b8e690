#include "relay.h"
#define OBS_SIZE 4
#define NUM_ATNS 2
#define ACT_SIZES {3, 2}
#define OBS_TENSOR_T ByteTensor
#define MY_ACTION_MASK 5
#define MY_VEC_INIT
#define MY_VEC_CLOSE
#define MY_STATE
#define Env Relay
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->length = (int)dict_get(kwargs, "length")->value;
    env->sleep_ms = (int)dict_get(kwargs, "sleep_ms")->value;
}

Env* my_vec_init(int* num_envs_out, int* buffer_env_starts, int* buffer_env_counts,
                 Dict* vec_kwargs, Dict* env_kwargs) {
    int total = (int)dict_get(vec_kwargs, "total_agents")->value;
    DictItem* extra = dict_get_unsafe(vec_kwargs, "bonus");
    float* bonus = calloc(1, sizeof(float));
    *bonus = extra == NULL ? 0.0f : (float)extra->value;
    Env* envs = calloc((size_t)total, sizeof(Env));
    int size = 0;
    for (int agents = 0; agents < total; size++) {
        envs[size].num_agents = 1 + size % 3;
        envs[size].index = size;
        envs[size].rng = (unsigned int)size;
        envs[size].bonus = bonus;
        my_init(&envs[size], env_kwargs);
        agents += envs[size].num_agents;
    }
    (void)buffer_env_starts;
    (void)buffer_env_counts;
    *num_envs_out = size;
    return envs;
}

void my_vec_close(Env* envs) {
    free(envs[0].bonus);
}

// Return the size of the environment's saved state: tick, count, then that many receipts.
size_t my_state_size(const Env* env) {
    return 2 * sizeof(int) + (size_t)env->count * sizeof(float);
}

void my_save_state(const Env* env, void* to) {
    int* numbers = to;
    numbers[0] = env->tick;
    numbers[1] = env->count;
    if (env->count > 0) {
        memcpy(numbers + 2, env->receipts, (size_t)env->count * sizeof(float));
    }
}

bool my_load_state(Env* env, const void* from, size_t size) {
    const int* numbers = from;
    if (size < 2 * sizeof(int) || numbers[1] < 0 ||
        size != 2 * sizeof(int) + (size_t)numbers[1] * sizeof(float) ||
        !make_room(env, numbers[1])) {
        return false;
    }
    env->tick = numbers[0];
    env->count = numbers[1];
    if (env->count > 0) {
        memcpy(env->receipts, numbers + 2, (size_t)env->count * sizeof(float));
    }
    return true;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "length", log->length);
    dict_set(out, "receipts", log->receipts);
}
