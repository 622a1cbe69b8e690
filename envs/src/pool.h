// A pool of persistent threads that step groups of environments.
//
// A group is idle or busy. begin() makes an idle group busy, launch() gives it to the threads, and
// it is idle again when its last chunk is done. Several groups may be busy at once. hold() keeps a
// group idle while a thread reads its environments.

#ifndef PUFFER_POOL_H
#define PUFFER_POOL_H

#include <stdbool.h>

typedef struct PufferPool PufferPool;

// Work on environments first..end-1 of a group, numbered from 0 within the group.
typedef void (*PufferWork)(void* context, int group, int first, int end);

// Create a pool with threads >= 1 and groups >= 1. counts (groups,), the numbers of environments,
// are copied. Return NULL if memory can't be allocated or threads can't be started.
PufferPool* puffer_pool_create(int threads, int groups, const int* counts, PufferWork work,
                               void* context);

// Make `count` neighbouring groups busy. Return false without a change if one is busy already.
bool puffer_pool_begin(PufferPool* pool, int first, int count);
// Give groups to the threads, as one piece of work. They were made busy by begin(), perhaps with
// others. chunk: environments that a thread claims at a time; 0 for a number that suits a step.
void puffer_pool_launch(PufferPool* pool, int first, int count, int chunk);
// Wait until the group is idle. Return false after the timeout; -1 is no timeout.
bool puffer_pool_wait(PufferPool* pool, int group, int milliseconds);
// Wait until the group is idle and not held, and make begin() and hold() wait until release(). Hold
// several groups in ascending order.
void puffer_pool_hold(PufferPool* pool, int group);
void puffer_pool_release(PufferPool* pool, int group);

int puffer_pool_threads(const PufferPool* pool);

// Return the thread-seconds spent inside work().
double puffer_pool_busy_seconds(PufferPool* pool);

// Finish all launched work, join the threads and free everything. NULL is allowed.
void puffer_pool_destroy(PufferPool* pool);

#endif
