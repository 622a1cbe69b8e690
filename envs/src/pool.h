// A pool of persistent threads that work through groups of environments.
//
// A group is idle or busy. begin() makes an idle group busy, launch() hands it to the threads, and
// it is idle again when the last of its chunks is done. Several groups may be busy at once. hold()
// keeps a group idle while somebody reads its environments.

#ifndef PUFFER_POOL_H
#define PUFFER_POOL_H

#include <stdbool.h>

typedef struct PufferPool PufferPool;

// Work on environments first..end-1 of a group, counted from 0 within the group.
typedef void (*PufferWork)(void* context, int group, int first, int end);

// threads >= 1 and groups >= 1; counts (groups,) are the environments of each group and are copied.
// NULL if memory or threads can't be had.
PufferPool* puffer_pool_create(int threads, int groups, const int* counts, PufferWork work,
                               void* context);

// Of `count` neighbouring groups. False, and nothing done, if one is busy already.
bool puffer_pool_begin(PufferPool* pool, int first, int count);
// What begin() was asked for, or a part of it, as one piece of work. chunk: environments that a
// thread claims at a time; 0 is what suits a step.
void puffer_pool_launch(PufferPool* pool, int first, int count, int chunk);
// Block while the group is busy, at most so long; -1: as long as it takes. False if it still is.
bool puffer_pool_wait(PufferPool* pool, int group, int milliseconds);
// Block while the group is busy or held, then keep begin() and hold() from returning until
// release(). Who holds several groups takes them in ascending order.
void puffer_pool_hold(PufferPool* pool, int group);
void puffer_pool_release(PufferPool* pool, int group);

int puffer_pool_threads(const PufferPool* pool);

// Thread-seconds spent inside work().
double puffer_pool_busy_seconds(PufferPool* pool);

// Finish what is launched, join the threads and free everything. NULL is fine.
void puffer_pool_destroy(PufferPool* pool);

#endif
