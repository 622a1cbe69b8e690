// faulty: walk along a line from its middle to one of its ends; one end is good. [env] fault plants
// a fault for scripts/check_env.py to find: a number of the list below.

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    SOUND,
    CRASH_IN_STEP,
    CRASH_IN_CLOSE,
    HANG_IN_STEP,
    NAN_OBSERVATION,
    CONSTANT_OBSERVATION,
    INFINITE_REWARD,
    DEAF,             // to its actions
    RANDOM,           // the process's generator
    PER_THREAD,       // a generator of each thread
    LAZY_RESET,       // in the step after the one that ends an episode
    NO_LOG,
    NAN_LOG,
    OWN_MEMORY,       // though the binding says MY_STATE_PLAIN
    NOTHING_LEGAL,
    HUGE_OBSERVATION, // finite, but not what comes of it
    // What works, but deserves a word.
    NO_REWARD,
    LARGE_REWARD,
    LARGE_OBSERVATION,
    ENDLESS,
    ONE_STEP,
    NO_CHANCE,
    FORGOTTEN_EPISODES,
    ALL_LEGAL,
    LATE_RESET,       // one number keeps its old value
    NO_TERMINAL,      // though an episode ends
    // Ends of a process that aren't one here.
    EXIT_IN_STEP,
    ABORT_IN_STEP,
    EXIT_IN_RESET,
    EXIT_IN_CLOSE,
    DEEP_STACK,       // 4 MiB of it
    RECURSION_IN_RESET,
};

typedef struct {
    float score, episode_return, episode_length, n;
} Log;

typedef struct {
    Log log;
    float* observations;  // (4,): position, goal, speed, age
    float* actions;       // (1,): 0 left, 1 stay, 2 right
    float* rewards;
    float* terminals;
    unsigned char* action_mask;
    int num_agents;
    unsigned int rng;

    int fault;
    int ticks;
    int ended;
    int waiting;
    float goal;
    float speed;
    float position;
    float* own;  // the position again, in separate memory
} Faulty;

static __thread unsigned int thread_rng;

static float deep(int kilobytes) {
    volatile char room[1024 * kilobytes];
    for (int i = 0; i < 1024 * kilobytes; i += 512) {
        room[i] = 1;
    }
    return room[0];
}

static int recurse(Faulty* env) {
    volatile int room[64] = {env->fault};
    return room[0] == SOUND ? 0 : recurse(env) + room[1];
}

static int draw(Faulty* env) {
    switch (env->fault) {
        case RANDOM: return (int)random();
        case PER_THREAD: return rand_r(env->ended ? &thread_rng : &env->rng);
        case NO_CHANCE: return 0;
        default: return rand_r(&env->rng);
    }
}

static void observe(Faulty* env) {
    const int fault = env->fault;
    const float position = fault == OWN_MEMORY ? *env->own : env->position;
    const float scale = fault == LARGE_OBSERVATION ? 1000.0f : 1.0f;
    env->observations[0] = fault == CONSTANT_OBSERVATION ? 1.0f : scale * position;
    env->observations[1] = fault == CONSTANT_OBSERVATION ? 1.0f : scale * env->goal;
    env->observations[2] = fault == CONSTANT_OBSERVATION ? 1.0f : env->speed;
    env->observations[3] = fault == CONSTANT_OBSERVATION ? 1.0f : fminf((float)env->ticks / 40.0f, 1.0f);
    if (fault == NAN_OBSERVATION && env->ticks == 5) {
        env->observations[2] = sqrtf(-1.0f - env->speed * env->speed);
    }
    if (fault == HUGE_OBSERVATION) {
        env->observations[2] = 1e37f * env->speed;
    }
#ifdef MASKED
    for (int i = 0; i < 3; i++) {
        const int hurry = i == 1 && fabsf(position) > 0.5f;  // no rest so near
        env->action_mask[i] = fault == ALL_LEGAL || !hurry;
        if (fault == NOTHING_LEGAL && env->ticks == 7) {
            env->action_mask[i] = 0;
        }
    }
#endif
}

void c_reset(Faulty* env) {
    if (env->fault == EXIT_IN_RESET) {
        _exit(4);
    }
    if (env->fault == RECURSION_IN_RESET) {
        env->ticks = recurse(env);
    }
    env->ticks = 0;
    env->position = 0.0f;
    if (env->own) {
        *env->own = 0.0f;
    }
    env->goal = draw(env) % 2 ? 1.0f : -1.0f;
    if (env->fault != LATE_RESET || !env->ended) {
        env->speed = 0.1f + 0.01f * (float)(draw(env) % 10);
    }
    observe(env);
}

static void end(Faulty* env, float score) {
    env->terminals[0] = env->fault == NO_TERMINAL ? 0.0f : 1.0f;
    env->ended += 1;
    if (env->fault != NO_LOG && (env->fault != FORGOTTEN_EPISODES || env->ended % 2)) {
        env->log.score += env->fault == NAN_LOG ? score / 0.0f : score;
        env->log.episode_return += score;
        env->log.episode_length += (float)env->ticks;
        env->log.n += 1.0f;
    }
    if (env->fault == LATE_RESET) {
        env->speed = 10.0f;
    }
    if (env->fault == LAZY_RESET) {
        env->waiting = 1;
        observe(env);
    } else {
        c_reset(env);
    }
}

void c_step(Faulty* env) {
    if (env->waiting) {
        env->waiting = 0;
        c_reset(env);
        return;
    }
    env->ticks += 1;
    if (env->fault == CRASH_IN_STEP && env->ticks == 9) {
        *(volatile int*)8 = 1;
    }
    if (env->fault == EXIT_IN_STEP && env->ticks == 9) {
        exit(3);
    }
    if (env->fault == ABORT_IN_STEP && env->ticks == 9) {
        abort();
    }
    if (env->fault == DEEP_STACK) {
        env->position += deep(4096) - 1.0f;
    }
    if (env->fault == HANG_IN_STEP && env->ticks == 9) {
        fputs("faulty hangs\n", stderr);
    }
    while (env->fault == HANG_IN_STEP && env->ticks == 9) {
        *(volatile int*)&env->ended = usleep(1000); // without taking a core from others
    }
    if (env->fault != DEAF) {
        env->position += env->speed * (env->actions[0] - 1.0f);
    }
    if (env->fault == ONE_STEP) {
        env->position = env->actions[0] - 1.0f;
    }
    if (env->own) {
        *env->own += env->speed * (env->actions[0] - 1.0f);
        env->position = *env->own;
    }
    const int late = env->ticks >= 40 && env->fault != ENDLESS;
    if (fabsf(env->position) >= 1.0f || late || env->fault == ONE_STEP) {
        const float reward = env->position * env->goal >= 1.0f ? 1.0f : 0.0f;
        switch (env->fault) {
            case INFINITE_REWARD: env->rewards[0] = reward / 0.0f; break;
            case NO_REWARD: break;
            case LARGE_REWARD: env->rewards[0] = 50.0f * reward; break;
            default: env->rewards[0] = reward;
        }
        if (env->fault == ENDLESS) {
            env->position = 0.0f;
        } else {
            end(env, reward);
            return;
        }
    }
    observe(env);
}

void c_render(Faulty* env) {
    (void)env;
}

void c_close(Faulty* env) {
    if (env->fault == CRASH_IN_CLOSE) {
        raise(SIGABRT);
    }
    if (env->fault == EXIT_IN_CLOSE) {
        exit(5);
    }
}
