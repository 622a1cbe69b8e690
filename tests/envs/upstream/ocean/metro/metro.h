// metro: passengers ride from station to station on a network that all environments share. A station
// with a passenger is taken, and masks allow only free stations on a line. In upstream's form:
// environments of 1, 2 and 3 agents, data from resources/.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATIONS 12
#define CHOICES (STATIONS + 1)  // the last: wait
#define METRO_OBS (3 * STATIONS)
#define MOST_AGENTS 3

typedef struct {
    float perf;
    float score;  // rides that ended where they should, per passenger
    float episode_return;
    float episode_length;
    float illegal;  // choices that the mask forbids
    float n;
} Log;

typedef struct {
    int stations;
    unsigned char to[STATIONS][STATIONS];
} Network;

typedef struct {
    Log log;
    float* observations;  // (num_agents, 3 * STATIONS): here, target, taken
    float* actions;       // (num_agents,)
    float* rewards;
    float* terminals;
    unsigned char* action_mask;  // (num_agents, CHOICES)
    int num_agents;
    unsigned int rng;

    const Network* network;  // shared
    int at[MOST_AGENTS];
    int target[MOST_AGENTS];
    int max_steps;
    int tick;
    float arrivals;
    float illegal;
    float total;
} Metro;

// Pairs of stations, from the file the repository's root has.
Network* load_network(const char* path) {
    FILE* file = fopen(path, "r");
    if (file == NULL) {
        printf("can't open %s\n", path);
        exit(1);
    }
    Network* network = (Network*)calloc(1, sizeof(Network));
    int a, b;
    if (fscanf(file, "%d", &network->stations) != 1 || network->stations != STATIONS) {
        exit(2);
    }
    while (fscanf(file, "%d %d", &a, &b) == 2) {
        network->to[a][b] = network->to[b][a] = 1;
    }
    fclose(file);
    return network;
}

bool taken(Metro* env, int station) {
    for (int i = 0; i < env->num_agents; i++) {
        if (env->at[i] == station) {
            return true;
        }
    }
    return false;
}

void compute_observations(Metro* env) {
    memset(env->observations, 0, (size_t)env->num_agents * METRO_OBS * sizeof(float));
    for (int i = 0; i < env->num_agents; i++) {
        float* obs = env->observations + i * METRO_OBS;
        unsigned char* mask = env->action_mask + i * CHOICES;
        obs[env->at[i]] = 1.0f;
        obs[STATIONS + env->target[i]] = 1.0f;
        for (int s = 0; s < STATIONS; s++) {
            const bool full = taken(env, s);
            obs[2 * STATIONS + s] = full ? 1.0f : 0.0f;
            mask[s] = env->network->to[env->at[i]][s] && !full;
        }
        mask[STATIONS] = 1;
    }
}

void new_target(Metro* env, int i) {
    do {
        env->target[i] = rand_r(&env->rng) % STATIONS;
    } while (env->target[i] == env->at[i]);
}

void c_reset(Metro* env) {
    env->tick = 0;
    env->arrivals = env->illegal = env->total = 0.0f;
    for (int i = 0; i < env->num_agents; i++) {
        env->at[i] = -1;
    }
    for (int i = 0; i < env->num_agents; i++) {
        int station;
        do {
            station = rand_r(&env->rng) % STATIONS;
        } while (taken(env, station));
        env->at[i] = station;
        new_target(env, i);
    }
    compute_observations(env);
}

void c_step(Metro* env) {
    env->tick += 1;
    for (int i = 0; i < env->num_agents; i++) {
        const int choice = (int)env->actions[i];
        if (!env->action_mask[i * CHOICES + choice]) {
            env->illegal += 1.0f;
        } else if (choice < STATIONS && !taken(env, choice)) {  // who rides first was there first
            env->at[i] = choice;
        }
        env->rewards[i] = -0.02f;
        if (env->at[i] == env->target[i]) {
            env->rewards[i] = 0.5f;
            env->arrivals += 1.0f;
            new_target(env, i);
        }
        env->total += env->rewards[i];
    }
    if (env->tick >= env->max_steps) {
        const float agents = (float)env->num_agents;
        env->log.perf += env->arrivals / agents / (float)env->max_steps;
        env->log.score += env->arrivals / agents;
        env->log.episode_return += env->total / agents;
        env->log.episode_length += (float)env->tick;
        env->log.illegal += env->illegal;
        env->log.n += 1.0f;
        for (int i = 0; i < env->num_agents; i++) {
            env->terminals[i] = 1.0f;
        }
        c_reset(env);
        return;
    }
    compute_observations(env);
}

void c_render(Metro* env) {
    for (int s = 0; s < STATIONS; s++) {
        printf("%c", taken(env, s) ? 'o' : '.');
    }
    printf("\n");
}

void c_close(Metro* env) {
    (void)env;
}
