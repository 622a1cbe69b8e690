// A pool of persistent threads that step groups of environments.
//
// A group is idle or busy: begin() makes an idle group busy, launch() then submits it to the
// threads, and the group is idle again when its environments have stepped. Several groups may be
// busy at once. hold() keeps a group idle while a thread reads its environments.

#ifndef PUFFER_POOL_H
#define PUFFER_POOL_H

#include <stdbool.h>

typedef struct PufferPool PufferPool;

// Function that steps environments first..end-1 of a group, numbered from 0 within the group. Called
// by the pool's threads.
typedef void (*PufferWork)(void* context, int group, int first, int end);

// Create a pool with at least one thread and one group. counts (groups,) are the numbers of
// environments in each group; they are copied. Return NULL if memory can't be allocated or threads
// can't be started.
PufferPool* puffer_pool_create(int threads, int groups, const int* counts, PufferWork work,
                               void* context);

// Mark `count` neighbouring groups as busy, before they are submitted. Return false without a
// change if one is busy already.
bool puffer_pool_begin(PufferPool* pool, int first, int count);
// Submit a step of `count` neighbouring groups to the pool's threads. begin() made them busy
// before, perhaps together with other groups. A thread claims `chunk` environments at a time; 0
// selects a number for steps.
void puffer_pool_launch(PufferPool* pool, int first, int count, int chunk);
// Wait until a group's environments have stepped (it is idle). Return false after the timeout; -1
// is no timeout.
bool puffer_pool_wait(PufferPool* pool, int group, int milliseconds);
// Reserve a group for the calling thread: wait until it is idle and not held, then hold it. begin()
// and hold() then wait until release(). To hold several groups, hold them in ascending order, so
// that two threads can't wait for each other.
void puffer_pool_hold(PufferPool* pool, int group);
void puffer_pool_release(PufferPool* pool, int group);

int puffer_pool_threads(const PufferPool* pool);

// Return the thread-seconds spent inside work().
double puffer_pool_busy_seconds(PufferPool* pool);

// Destroy a pool of threads: finish all submitted work, join the threads and free everything. NULL
// is allowed.
void puffer_pool_destroy(PufferPool* pool);

#endif
