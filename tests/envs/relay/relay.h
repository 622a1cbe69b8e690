// relay: an environment for tests. Environment e has 1 + e % 3 agents and two heads, observations
// are updated in place, actions are overwritten, every row says whose it is, and the memory an
// environment owns grows within an episode.

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    float length;    // steps of the episodes
    float receipts;  // sum of rewards
    float n;
} Log;

typedef struct {
    Log log;
    unsigned char* observations;  // per agent: environment, agent, steps so far (in place), draw
    float* actions;
    float* rewards;
    float* terminals;
    unsigned char* action_mask;
    int num_agents;
    unsigned int rng;

    int index;
    int length;
    int tick;
    int sleep_ms;
    int count;        // rewards so far, of all agents
    int room;         // for so many
    float* receipts;  // (room,) those rewards; must be freed by c_close
    float* bonus;     // shared by all, freed by my_vec_close
} Relay;

// Make room for `count` receipts in the environment. Returns false if there is no memory.
static bool make_room(Relay* env, int count) {
    if (count > env->room) {
        float* larger = realloc(env->receipts, (size_t)count * sizeof(float));
        if (larger == NULL) {
            return false;
        }
        env->receipts = larger;
        env->room = count;
    }
    return true;
}

// Write the action masks: agent a may take choice (tick + a) % 3 of head 0 and both choices of head 1.
static void write_masks(Relay* env) {
    for (int a = 0; a < env->num_agents; a++) {
        for (int choice = 0; choice < 5; choice++) {
            env->action_mask[a * 5 + choice] = choice >= 3 || choice == (env->tick + a) % 3;
        }
    }
}

void c_reset(Relay* env) {
    env->tick = 0;
    env->count = 0;
    for (int a = 0; a < env->num_agents; a++) {
        unsigned char* row = env->observations + a * 4;
        row[0] = (unsigned char)env->index;
        row[1] = (unsigned char)a;
        row[2] = 0;
        row[3] = (unsigned char)(rand_r(&env->rng) % 256);
        env->rewards[a] = 99.0f;  // must not be seen: a reset has no reward
    }
    write_masks(env);
}

void c_step(Relay* env) {
    if (env->sleep_ms > 0) {
        nanosleep(&(struct timespec){.tv_nsec = env->sleep_ms * 1000000L}, NULL);
    }
    env->tick += 1;
    const int over = env->tick == env->length;
    for (int a = 0; a < env->num_agents; a++) {
        float* action = env->actions + a * 2;
        env->observations[a * 4 + 2] += 1;
        env->rewards[a] += action[0] + 10.0f * action[1] + *env->bonus;
        if (make_room(env, env->count + 1)) {
            env->receipts[env->count++] = env->rewards[a];
        }
        action[0] = action[1] = -1.0f;
    }
    if (over) {
        env->log.length += (float)env->tick;
        for (int i = 0; i < env->count; i++) {
            env->log.receipts += env->receipts[i];
        }
        env->log.n += 1.0f;
        env->tick = 0;
        env->count = 0;
        for (int a = 0; a < env->num_agents; a++) {
            env->terminals[a] = 1.0f;
            env->observations[a * 4 + 2] = 0;
        }
    }
    write_masks(env);
}

void c_render(Relay* env) {
    (void)env;
}

void c_close(Relay* env) {
    free(env->receipts);
}
