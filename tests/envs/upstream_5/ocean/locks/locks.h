// locks: four dials to be turned to their numbers, two pairs of hands. An agent chooses a dial and how
// to turn it; dials that are right can't be turned, and a turn of three needs a rest before. In 5.0's
// form: masks that are written anew each step, environments that are made together and share a table
// from resources/, agents in separate memory, texts and lists among the parameters.
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "raylib.h"

typedef float obs_t;
#include "pufferenv.h"

#define DIALS 4
#define TURNS 3
#define HANDS 2
#define NUMBERS 10
#define REST 3
#define OBS_SIZE (DIALS * 2 + DIALS + 1)
#define NUM_ATNS 2
#define ACT_SIZES {DIALS, TURNS}
#define MY_VEC_INIT
#define MY_VEC_CLOSE
#define MY_STATE  // puffer_mlx: the agents are elsewhere, so what to save is said below

struct Log {
    float perf;
    float score;
    float opened;
    float episode_return;
    float episode_length;
    float illegal;
    float n;
};

typedef struct {
    int turn[TURNS];
} Table;

struct Env {
    Log log;
    Agent* agents;
    int num_agents;
    int tag;
    int boundary_reached;
    unsigned int rng;
    const Table* table;  // shared
    int max_steps;
    int first[DIALS];  // the combination of the first episode
    // From here on: what changes.
    int tick;
    int episodes;
    int dial[DIALS];
    int target[DIALS];
    int rested[HANDS];
    float illegal;
    float total;
};

static void look(Env* env) {
    bool closed = false;
    for (int d = 0; d < DIALS; d++) {
        closed = closed || env->dial[d] != env->target[d];
    }
    for (int i = 0; i < env->num_agents; i++) {
        Agent* agent = &env->agents[i];
        for (int d = 0; d < DIALS; d++) {
            const int way = (env->target[d] - env->dial[d] + NUMBERS) % NUMBERS;
            agent->observations[d] = 0.1f * (float)way;
            agent->observations[DIALS + d] = way >= 3 && way <= 7 ? 1.0f : 0.0f;
            agent->observations[2 * DIALS + d] = way > 7 ? 1.0f : 0.0f;
            agent->action_mask[d] = way != 0 || !closed;
        }
        agent->observations[3 * DIALS] = env->rested[i] >= REST;
        agent->action_mask[DIALS] = 1;
        agent->action_mask[DIALS + 1] = 1;
        agent->action_mask[DIALS + 2] = env->rested[i] >= REST;
    }
}

void puf_init(Env* env, Dict* kwargs) {
    const DictItem* list = dict_find(kwargs, "targets");
    env->num_agents = HANDS;
    env->agents = (Agent*)calloc(HANDS, sizeof(Agent));
    env->max_steps = dict_get(kwargs, "max_steps");
    assert(list != NULL && list->len == DIALS && "targets must be four numbers");
    for (int d = 0; d < DIALS; d++) {
        env->first[d] = list->values[d];
    }
    assert(dict_get(kwargs, "helps") == 0);
}

Env* my_vec_init(int* num_envs, int* env_starts, int* env_counts, Dict* vec_kwargs,
                 Dict* env_kwargs) {
    const int total = dict_get(vec_kwargs, "total_agents");
    const int buffers = dict_get(vec_kwargs, "num_buffers");
    const char* path = dict_get_str(env_kwargs, "table");
    FILE* file = fopen(path, "r");
    if (file == NULL) {
        printf("can't open %s\n", path);
        exit(1);
    }
    Table* table = (Table*)calloc(1, sizeof(Table));
    for (int k = 0; k < TURNS; k++) {
        assert(fscanf(file, "%d", &table->turn[k]) == 1);
    }
    fclose(file);
    *num_envs = total / HANDS;
    Env* envs = (Env*)calloc(*num_envs, sizeof(Env));
    for (int b = 0; b < buffers; b++) {
        env_starts[b] = b * (*num_envs / buffers);
        env_counts[b] = *num_envs / buffers;
    }
    for (int e = 0; e < *num_envs; e++) {
        envs[e].rng = e;
        puf_init(&envs[e], env_kwargs);
        envs[e].table = table;
    }
    return envs;
}

void my_vec_close(Env* envs) {
    free((void*)envs[0].table);
}

void puf_reset(Env* env) {
    env->tick = 0;
    env->illegal = env->total = 0.0f;
    for (int d = 0; d < DIALS; d++) {
        env->dial[d] = rand_r(&env->rng) % NUMBERS;
        env->target[d] = env->episodes == 0 ? env->first[d] : rand_r(&env->rng) % NUMBERS;
    }
    memset(env->rested, 0, sizeof(env->rested));
    env->episodes += 1;
    look(env);
}

void puf_step(Env* env) {
    int closed = 0;
    env->tick += 1;
    for (int i = 0; i < env->num_agents; i++) {
        Agent* agent = &env->agents[i];
        const int d = agent->actions[0], k = agent->actions[1];
        assert(d >= 0 && d < DIALS && k >= 0 && k < TURNS);
        const bool legal = agent->action_mask[d] && agent->action_mask[DIALS + k];
        env->illegal += legal ? 0.0f : 1.0f;
        env->rested[i] = k == 2 ? 0 : env->rested[i] + 1;
        agent->rewards[0] = -0.02f;
        if (legal && env->dial[d] != env->target[d]) {
            env->dial[d] = (env->dial[d] + env->table->turn[k] + NUMBERS) % NUMBERS;
            agent->rewards[0] += env->dial[d] == env->target[d] ? 0.25f : 0.0f;
        }
        env->total += agent->rewards[0];
    }
    for (int d = 0; d < DIALS; d++) {
        closed += env->dial[d] != env->target[d];
    }
    if (closed == 0 || env->tick >= env->max_steps) {
        const float score = 1.0f - (float)env->tick / (float)env->max_steps;
        env->log.perf += score;
        env->log.score += score;
        env->log.opened += closed == 0;
        env->log.episode_return += env->total / (float)env->num_agents;
        env->log.episode_length += (float)env->tick;
        env->log.illegal += env->illegal;
        env->log.n += 1.0f;
        for (int i = 0; i < env->num_agents; i++) {
            env->agents[i].terminals[0] = 1.0f;
        }
        puf_reset(env);
        return;
    }
    look(env);
}

void puf_render(Env* env) {
    for (int d = 0; d < DIALS; d++) {
        printf("%d/%d ", env->dial[d], env->target[d]);
    }
    printf("\n");
}

void puf_close(Env* env) {
    free(env->agents);
}

void puf_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "locks/opened", log->opened);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "illegal", log->illegal);
    dict_set(out, "n", log->n);
}

#ifdef PUFFER_MLX
#define LOCKS_BYTES (sizeof(Env) - offsetof(Env, tick))

size_t my_state_size(const Env* env) {
    return LOCKS_BYTES;
}

void my_save_state(const Env* env, void* to) {
    memcpy(to, &env->tick, LOCKS_BYTES);
}

bool my_load_state(Env* env, const void* from, size_t size) {
    if (size != LOCKS_BYTES) {
        return false;
    }
    memcpy(&env->tick, from, size);
    return true;
}
#endif
