// Steps an environment the way vec/native.py does, for sanitizers, which can't look into a Python
// process without help: several groups under way at once, logs from a second thread, a failing
// creation, a second reset, and a close in the middle of steps.
//
// usage: driver AGENTS GROUPS THREADS STEPS [KEY=VALUE ...]

#include <pthread.h>
#include <stdatomic.h>

#include "vec.h"

static atomic_bool stop;
static double episodes;

static void* read_logs(void* vec) {
    const char* keys[64];
    double values[64];
    while (!atomic_load(&stop)) {
        int size = puffer_log(vec, keys, values, 64);
        episodes += size > 0 ? values[size - 1] : 0.0;
        sched_yield();
    }
    return NULL;
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
    double values[32];
    for (int i = 0; i < num_keys; i++) {
        char* equals = strchr(argv[5 + i], '=');
        *equals = '\0';
        keys[i] = argv[5 + i];
        values[i] = atof(equals + 1);
    }

    char text[512];
    if (puffer_create(agents, groups, threads, 0, 0, NULL, NULL, 0, NULL, NULL, text,
                      sizeof(text)) != NULL) {
        fprintf(stderr, "creation without any key should have failed\n");
        return 1;
    }
    printf("%s\n", text);
    PufferVec* vec = puffer_create(agents, groups, threads, 3, 0, NULL, NULL, num_keys, keys,
                                   values, text, sizeof(text));
    if (vec == NULL) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }

    // Every array has the exact size, so that a write beyond it is seen.
    int spec[32];
    puffer_spec(spec, 32);
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
    pthread_t reader;
    pthread_create(&reader, NULL, read_logs, vec);
    unsigned int random = 1;
    double total = 0.0;
    for (int step = 0; step < steps; step++) {
        for (int g = 0; g < groups; g++) {
            const size_t first = (size_t)g * n;
            puffer_wait(vec, g);
            for (size_t i = 0; i < n; i++) {
                total += rewards[first + i];
                for (size_t h = 0; h < heads; h++) {
                    actions[i * heads + h] = (float)(puffer_rand_r(&random) % spec[5 + h]);
                }
            }
            if (puffer_send(vec, g, actions, observations + first * row, rewards + first,
                            terminals + first, masks + first * mask) != 0) {
                fprintf(stderr, "group %d was stepping\n", g);
                return 1;
            }
        }
        if (step == steps / 2) {
            for (int g = 0; g < groups; g++) {
                puffer_wait(vec, g);
            }
            puffer_reset(vec, observations, rewards, terminals, masks);
        }
    }
    atomic_store(&stop, true);
    pthread_join(reader, NULL);
    printf("reward %g, episodes %g, busy %g s\n", total, episodes, puffer_busy_seconds(vec));
    puffer_close(vec);
    free(observations);
    free(rewards);
    free(terminals);
    free(masks);
    free(actions);
    return 0;
}
