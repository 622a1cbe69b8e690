// See pool.h.
//
// One mutex guards the list of launched groups and both condition variables. It is locked a few
// times per launch, never per chunk. Within a launch, one atomic subtraction claims a chunk.
//
// Groups that are launched together are one piece of work. The first of them is the leader.

#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Chunks per thread and group: enough to even out environments of unequal cost.
#define CHUNKS_PER_THREAD 8

// Times for which a thread polls for a launch before it sleeps. Waking a thread can take as long
// as a group's step. So threads poll for LONGEST_NS if the last gap between two steps was at most
// that long. They yield while they poll, so that other threads get the core.
#define LOOK_NS 50000
#define LONGEST_NS 300000

// Least stack size of a thread. macOS's default is 512 KiB, but 8 MiB for the main thread, in which
// PufferLib's environments are developed.
#define STACK_BYTES ((size_t)8 << 20)

typedef struct {
    int count;         // environments
    int usual;         // environments claimed at a time, by default
    atomic_bool busy;  // written under the mutex
    int holders;       // threads in hold(), or between it and release()
    bool held;         // true if one of them is between the two
    // For a leader:
    int followers;     // groups after it that were launched with it
    int total;         // environments of all these groups
    atomic_int chunk;  // environments claimed at a time in the current step
    atomic_int rest;   // unclaimed environments, the first ones; <= 0 if none is left
    atomic_int left;   // environments that haven't stepped yet
} Group;

struct PufferPool {
    pthread_mutex_t mutex;
    pthread_cond_t work;  // something was launched, or stop
    pthread_cond_t done;  // a group became idle, or was released
    bool stop;
    int idle;              // threads waiting on `work`
    uint64_t rested;       // when the last busy group became idle
    atomic_uint look_ns;   // how long threads poll
    atomic_uint launches;  // number of launches; threads poll it
    int* launched;         // leaders, in the order of launch
    int num_launched;
    Group* groups;
    int num_groups;
    PufferWork run;
    void* context;
    atomic_uint_fast64_t busy_ns;
    pthread_t* threads;
    int num_threads;
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Run environments first..end-1, counted from the start of a group, in this group and those after
// it, with one call per group.
static void run(PufferPool* pool, int index, int first, int end) {
    for (; first < end; index++) {
        const int count = pool->groups[index].count;
        if (first < count) {
            pool->run(pool->context, index, first, end < count ? end : count);
        }
        first = first < count ? 0 : first - count;
        end -= count;
    }
}

// Step environments of submitted groups (a launch) in chunks until none is left. The thread that
// finishes the last chunk makes the groups idle. A late thread may find the groups idle or launched
// again. It then claims nothing, or a chunk of the new step, which launch() published with `rest`.
static void work_on(PufferPool* pool, int index) {
    Group* leader = &pool->groups[index];
    uint64_t start = now_ns();
    bool finished = false;
    for (;;) {
        const int chunk = atomic_load(&leader->chunk);
        const int end = atomic_fetch_sub(&leader->rest, chunk);
        if (end <= 0) {
            break;
        }
        const int first = end > chunk ? end - chunk : 0;
        run(pool, index, first, end);
        if (atomic_fetch_sub(&leader->left, end - first) == end - first) {
            finished = true;
            break;
        }
    }
    atomic_fetch_add(&pool->busy_ns, now_ns() - start);
    if (!finished) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    int at = 0;
    while (pool->launched[at] != index) {
        at++;
    }
    pool->num_launched -= 1;
    memmove(&pool->launched[at], &pool->launched[at + 1],
            (size_t)(pool->num_launched - at) * sizeof(int));
    if (pool->num_launched == 0) {
        pool->rested = now_ns();
    }
    for (int g = index; g <= index + leader->followers; g++) {
        atomic_store(&pool->groups[g].busy, false);
    }
    pthread_cond_broadcast(&pool->done);
    pthread_mutex_unlock(&pool->mutex);
}

// Find work for a thread: return the index of the first launch (submitted groups) that no thread
// has begun, else the first with environments left, else -1. Threads that share a launch move its
// memory from core to core, so they do that only if there is no other one: with eight groups
// launched one by one, two threads are a fifth faster. Needs the mutex.
static int find_work(PufferPool* pool) {
    int shared = -1;
    for (int i = 0; i < pool->num_launched; i++) {
        Group* leader = &pool->groups[pool->launched[i]];
        const int rest = atomic_load(&leader->rest);
        if (rest == leader->total) {
            return pool->launched[i];
        }
        if (shared < 0 && rest > 0) {
            shared = pool->launched[i];
        }
    }
    return shared;
}

// Poll for new work: return when groups are submitted to the pool after the `seen` launches, or
// after look_ns nanoseconds.
static void await_launch(PufferPool* pool, unsigned int seen) {
    for (uint64_t end = now_ns() + atomic_load(&pool->look_ns); now_ns() < end; sched_yield()) {
        if (atomic_load(&pool->launches) != seen) {
            return;
        }
    }
}

static void* thread_main(void* argument) {
    PufferPool* pool = argument;
    bool looked = false;  // has polled without result since the last work
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        int group = find_work(pool);
        if (group >= 0) {
            pthread_mutex_unlock(&pool->mutex);
            work_on(pool, group);
            pthread_mutex_lock(&pool->mutex);
            looked = false;
        } else if (pool->stop) {
            break;
        } else if (!looked) {
            unsigned int seen = atomic_load(&pool->launches);
            pthread_mutex_unlock(&pool->mutex);
            await_launch(pool, seen);
            pthread_mutex_lock(&pool->mutex);
            looked = true;
        } else {
            pool->idle += 1;
            pthread_cond_wait(&pool->work, &pool->mutex);
            pool->idle -= 1;
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

// Start a thread of the pool. Return false if it can't be started. If the stack size can't be set, use
// the default.
static bool start_thread(pthread_t* thread, PufferPool* pool) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) == 0) {
        size_t usual = 0;
        bool started = false;
        if (pthread_attr_getstacksize(&attributes, &usual) != 0 || usual >= STACK_BYTES ||
            pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0) {
            started = pthread_create(thread, &attributes, thread_main, pool) == 0;
        }
        pthread_attr_destroy(&attributes);
        if (started) {
            return true;
        }
    }
    return pthread_create(thread, NULL, thread_main, pool) == 0;
}

PufferPool* puffer_pool_create(int threads, int groups, const int* counts, PufferWork work,
                               void* context) {
    PufferPool* pool = calloc(1, sizeof(PufferPool));
    if (pool == NULL) {
        return NULL;
    }
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    atomic_store(&pool->look_ns, LOOK_NS);
    pool->run = work;
    pool->context = context;
    pool->num_groups = groups;
    pool->groups = calloc((size_t)groups, sizeof(Group));
    pool->launched = calloc((size_t)groups, sizeof(int));
    pool->threads = calloc((size_t)threads, sizeof(pthread_t));
    if (pool->groups == NULL || pool->launched == NULL || pool->threads == NULL) {
        puffer_pool_destroy(pool);
        return NULL;
    }
    for (int g = 0; g < groups; g++) {
        int chunk = threads == 1 ? counts[g] : counts[g] / (threads * CHUNKS_PER_THREAD);
        pool->groups[g].count = counts[g];
        pool->groups[g].usual = chunk < 1 ? 1 : chunk;
    }
    while (pool->num_threads < threads) {
        if (!start_thread(&pool->threads[pool->num_threads], pool)) {
            puffer_pool_destroy(pool);
            return NULL;
        }
        pool->num_threads += 1;
    }
    return pool;
}

static bool begin(PufferPool* pool, int index) {
    Group* group = &pool->groups[index];
    pthread_mutex_lock(&pool->mutex);
    while (group->holders > 0 && !atomic_load(&group->busy)) {
        pthread_cond_wait(&pool->done, &pool->mutex);
    }
    bool idle = !atomic_load(&group->busy);
    if (idle) {
        atomic_store(&group->busy, true);
    }
    pthread_mutex_unlock(&pool->mutex);
    return idle;
}

bool puffer_pool_begin(PufferPool* pool, int first, int count) {
    for (int g = first; g < first + count; g++) {
        if (!begin(pool, g)) {
            pthread_mutex_lock(&pool->mutex);
            while (--g >= first) {
                atomic_store(&pool->groups[g].busy, false);
            }
            pthread_cond_broadcast(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
            return false;
        }
    }
    return true;
}

void puffer_pool_launch(PufferPool* pool, int first, int count, int chunk) {
    Group* leader = &pool->groups[first];
    int total = 0;
    int usual = 0;
    for (int g = first; g < first + count; g++) {
        total += pool->groups[g].count;
        usual += pool->groups[g].usual;
    }
    chunk = chunk > 0 ? chunk : usual;
    pthread_mutex_lock(&pool->mutex);
    if (pool->num_launched == 0) {
        const bool brief = now_ns() - pool->rested < LONGEST_NS;
        atomic_store(&pool->look_ns, brief ? LONGEST_NS : LOOK_NS);
    }
    leader->followers = count - 1;
    leader->total = total;
    atomic_store(&leader->chunk, chunk);
    atomic_store(&leader->left, total);
    atomic_store(&leader->rest, total);  // last: now a late thread may claim a chunk
    pool->launched[pool->num_launched++] = first;
    atomic_fetch_add(&pool->launches, 1);
    if (pool->idle > 0 && chunk < total) {
        pthread_cond_broadcast(&pool->work);
    } else if (pool->idle > 0) {
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->mutex);
}

bool puffer_pool_wait(PufferPool* pool, int index, int milliseconds) {
    Group* group = &pool->groups[index];
    for (uint64_t end = now_ns() + atomic_load(&pool->look_ns); now_ns() < end; sched_yield()) {
        if (!atomic_load(&group->busy)) {
            return true;
        }
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);  // the clock of condition variables
    const int64_t ns = until.tv_nsec + (int64_t)milliseconds * 1000000;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    int failed = 0;
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&group->busy) && failed == 0) {
        failed = milliseconds < 0 ? pthread_cond_wait(&pool->done, &pool->mutex)
                                  : pthread_cond_timedwait(&pool->done, &pool->mutex, &until);
    }
    const bool idle = !atomic_load(&group->busy);
    pthread_mutex_unlock(&pool->mutex);
    return idle;
}

void puffer_pool_hold(PufferPool* pool, int index) {
    Group* group = &pool->groups[index];
    pthread_mutex_lock(&pool->mutex);
    group->holders += 1;
    while (group->held || atomic_load(&group->busy)) {
        pthread_cond_wait(&pool->done, &pool->mutex);
    }
    group->held = true;
    pthread_mutex_unlock(&pool->mutex);
}

void puffer_pool_release(PufferPool* pool, int index) {
    pthread_mutex_lock(&pool->mutex);
    pool->groups[index].held = false;
    pool->groups[index].holders -= 1;
    pthread_cond_broadcast(&pool->done);
    pthread_mutex_unlock(&pool->mutex);
}

int puffer_pool_threads(const PufferPool* pool) {
    return pool->num_threads;
}

double puffer_pool_busy_seconds(PufferPool* pool) {
    return (double)atomic_load(&pool->busy_ns) * 1e-9;
}

void puffer_pool_destroy(PufferPool* pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->num_threads; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->groups);
    free(pool->launched);
    free(pool->threads);
    free(pool);
}
