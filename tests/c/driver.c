// Steps an environment as vec/native does, as a program for sanitizers, which need extra help in a
// Python process: several groups at once, logs and saved states from two other threads, a failing
// creation, a second reset, a state that is restored elsewhere and refused when it is truncated,
// and a close during steps. Actions are random, legal or not.
//
// usage: driver AGENTS GROUPS THREADS STEPS [KEY=VALUE ...]

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vec.h"

static atomic_bool stop;

typedef struct {
    PufferVec* vec;
    double episodes;
} Reader;

// Return a random action for a head: a choice, or a number from -2 to 2 if it is continuous (size 1).
static float draw_action(int size, unsigned int* random) {
    const int number = puffer_rand_r(random);
    return size == 1 ? (float)(number % 401 - 200) / 100.0f : (float)(number % size);
}

// Save the environments' state in memory of exactly its size; NULL if that fails.
static unsigned char* save(PufferVec* vec, int64_t* size) {
    int64_t needed = puffer_save(vec, NULL, -1);
    unsigned char* state = NULL;
    do {  // steps may come between and change the size
        *size = needed;
        free(state);
        state = needed < 0 ? NULL : malloc((size_t)needed);
        needed = state == NULL ? -1 : puffer_save(vec, state, needed);
    } while (needed > *size);
    *size = needed;
    return state;
}

// Return the number of episodes that ended since the last call.
static double count_episodes(PufferVec* vec) {
    const char* keys[64];
    double values[64];
    int size = puffer_log(vec, keys, values, 64);
    double count = size > 0 ? values[size - 1] : 0.0;
    for (int env = 0; (size = puffer_next_log(vec, &env, keys, values, 64)) > 0; env++) {
        count += values[size - 1];
    }
    return count;
}

// Read logs and sometimes save the state in a second thread, until stopped. Saving is rare, because it stops all groups, and steps
// must have the time to meet.
static void* read_on(void* argument) {
    Reader* reader = argument;
    for (int round = 0; !atomic_load(&stop); round++) {
        reader->episodes += count_episodes(reader->vec);
        if (round % 32 == 0) {
            int64_t bytes;
            free(save(reader->vec, &bytes));
        }
        sched_yield();
    }
    return NULL;
}

typedef struct {
    float* actions;  // (steps, agents, heads)
    const int* sizes;
    size_t heads;
    size_t agents;
} Player;

static void play(void* context, int t, int first, int count) {
    const Player* player = context;
    for (size_t i = (size_t)first; i < (size_t)(first + count); i++) {
        unsigned int random = (unsigned int)(t * 7919) + (unsigned int)i;
        for (size_t h = 0; h < player->heads; h++) {
            player->actions[((size_t)t * player->agents + i) * player->heads + h] =
                draw_action(player->sizes[h], &random);
        }
    }
}

// Check two complete rollouts into memory of exactly their size, and one that is stopped.
static bool collects(PufferVec* vec, const int* spec, int agents) {
    enum { STEPS = 20, SPANS = 8 };
    const size_t n = (size_t)agents;
    const size_t row = (size_t)spec[1] * (spec[2] ? sizeof(float) : 1);
    const size_t mask = (size_t)spec[4];
    Player player = {malloc(STEPS * n * (size_t)spec[3] * sizeof(float)), spec + 8,
                     (size_t)spec[3], n};
    unsigned char* observations = malloc((STEPS + 1) * n * row);
    float* rewards = malloc((STEPS + 1) * n * sizeof(float));
    float* terminals = malloc((STEPS + 1) * n * sizeof(float));
    unsigned char* masks = malloc((STEPS + 1) * n * mask + 1);
    double seconds[2];
    PufferSpan spans[SPANS];
    bool right = true;
    for (int i = 0; i < 2; i++) {
        right = right && puffer_collect(vec, STEPS, play, &player, player.actions, observations,
                                        rewards, terminals, masks, spans, SPANS) == 0;
        int found = PUFFER_UNDER_WAY;
        while (right && found == PUFFER_UNDER_WAY) {
            found = puffer_collected(vec, seconds, 1);
        }
        right = right && found > 0;
    }
    Player* stopped = malloc(sizeof(Player));
    *stopped = player;
    right = right && puffer_collect(vec, STEPS, play, stopped, player.actions, observations, rewards,
                                    terminals, masks, spans, SPANS) == 0;
    puffer_stop(vec);
    free(stopped);  // nobody acts any more
    right = right && puffer_collected(vec, seconds, -1) >= 0;
    free(player.actions);
    free(observations);
    free(rewards);
    free(terminals);
    free(masks);
    return right;
}

// Check that restoring refuses a part of a state, and that the whole state comes back as the same bytes.
static bool restores(PufferVec* vec, const unsigned char* state, int64_t size) {
    char text[512];
    const int64_t cuts[] = {0, 16, 32, 48, 64, size / 32 * 16, size - 16};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(int64_t); i++) {
        unsigned char* part = malloc((size_t)cuts[i] + 1);
        memcpy(part, state, (size_t)cuts[i]);
        if (puffer_load(vec, part, cuts[i], text, sizeof(text)) == 0) {
            fprintf(stderr, "%d of %d bytes were accepted\n", (int)cuts[i], (int)size);
            return false;
        }
        free(part);
    }
    if (puffer_load(vec, state, size, text, sizeof(text)) != 0) {
        fprintf(stderr, "%s\n", text);
        return false;
    }
    int64_t again;
    unsigned char* same = save(vec, &again);
    const bool equal = again == size && memcmp(same, state, (size_t)size) == 0;
    if (!equal) {
        fprintf(stderr, "the restored state is another\n");
    }
    free(same);
    return equal;
}

int main(int argc, char** argv) {
    if (argc < 5) {
        return 2;
    }
    const int agents = atoi(argv[1]);
    const int groups = atoi(argv[2]);
    const int threads = atoi(argv[3]);
    const int steps = atoi(argv[4]);
    const int num_keys = argc - 5;
    const char* keys[32];
    const char* texts[32];
    double values[32];
    for (int i = 0; i < num_keys; i++) {
        char* equals = strchr(argv[5 + i], '=');
        *equals = '\0';
        keys[i] = argv[5 + i];
        texts[i] = equals + 1;
        values[i] = atof(texts[i]);
    }

    char text[512];
    const PufferKeywords none = {0, NULL, NULL, NULL};
    const PufferKeywords given = {num_keys, keys, values, texts};
    PufferVec* keyless = puffer_create(agents, groups, threads, 0, &none, &none, NULL, 0, text,
                                       sizeof(text));
    printf("%s\n", keyless == NULL ? text : "no key is missing");
    if (keyless != NULL) {
        puffer_close(keyless, -1);
    }
    PufferVec* vec = puffer_create(agents, groups, threads, 3, &none, &given, NULL, 0, text,
                                   sizeof(text));
    if (vec == NULL) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }

    // Every array has the exact size, so that a write beyond it is seen.
    int spec[32];
    puffer_spec(spec, 32);
    const int* sizes = spec + 8;
    const size_t row = (size_t)spec[1] * (spec[2] ? sizeof(float) : 1);
    const size_t heads = (size_t)spec[3];
    const size_t mask = (size_t)spec[4];
    const size_t n = (size_t)(agents / groups);
    unsigned char* observations = malloc((size_t)agents * row);
    float* rewards = malloc((size_t)agents * sizeof(float));
    float* terminals = malloc((size_t)agents * sizeof(float));
    unsigned char* masks = malloc((size_t)agents * mask + 1);
    float* actions = malloc(n * heads * sizeof(float));

    puffer_reset(vec, observations, rewards, terminals, masks);
    Reader readers[] = {{vec, 0.0}, {vec, 0.0}};
    pthread_t reading[2];
    for (int i = 0; i < 2; i++) {
        pthread_create(&reading[i], NULL, read_on, &readers[i]);
    }
    unsigned int random = 1;
    double total = 0.0;
    unsigned char* state = NULL;
    int64_t state_size = 0;
    for (int step = 0; step < steps; step++) {
        for (int g = 0; g < groups; g++) {
            const size_t first = (size_t)g * n;
            puffer_wait(vec, g, 1, -1);
            for (size_t i = 0; i < n; i++) {
                total += rewards[first + i];
                for (size_t h = 0; h < heads; h++) {
                    actions[i * heads + h] = draw_action(sizes[h], &random);
                }
            }
            if (puffer_send(vec, g, 1, actions, observations + first * row, rewards + first,
                            terminals + first, masks + first * mask) != 0) {
                fprintf(stderr, "group %d was stepping\n", g);
                return 1;
            }
        }
        if (step == steps / 4) {
            state = save(vec, &state_size);
        }
        if (step == steps / 2) {
            for (int g = 0; g < groups; g++) {
                puffer_wait(vec, g, 1, -1);
            }
            puffer_reset(vec, observations, rewards, terminals, masks);
        }
    }
    for (int g = 0; g < groups; g++) {
        puffer_wait(vec, g, 1, -1);
    }
    if (!collects(vec, spec, agents)) {
        fprintf(stderr, "no rollout was collected\n");
        return 1;
    }
    puffer_send(vec, 0, 1, actions, observations, rewards, terminals, masks);
    atomic_store(&stop, true);
    double episodes = count_episodes(vec);
    for (int i = 0; i < 2; i++) {
        pthread_join(reading[i], NULL);
        episodes += readers[i].episodes;
    }
    printf("reward %g, episodes %g, busy %g s\n", total, episodes, puffer_busy_seconds(vec));
    puffer_close(vec, -1);

    vec = puffer_create(agents, groups, 2, 5, &none, &given, NULL, 0, text, sizeof(text));
    if (state != NULL && !restores(vec, state, state_size)) {
        return 1;
    }
    float* all_actions = calloc((size_t)agents * heads, sizeof(float));
    for (int step = 0; step < 50; step++) {
        puffer_send(vec, 0, groups, all_actions, observations, rewards, terminals, masks);
        puffer_wait(vec, 0, groups, -1);
    }
    puffer_close(vec, -1);
    free(all_actions);
    free(state);
    free(observations);
    free(rewards);
    free(terminals);
    free(masks);
    free(actions);
    return 0;
}
