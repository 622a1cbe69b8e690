// See collect.h and vec.h. Each part of the agents goes through all steps without waiting for the
// others, and reads mostly what the same core wrote.

#include "collect.h"

#include <time.h>

#include "vec_struct.h"

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void note(PufferCollect* work, int first, uint64_t begin, uint64_t end) {
    static atomic_int threads = 0;
    static _Thread_local int thread = -1;
    if (thread < 0) {
        thread = atomic_fetch_add(&threads, 1);
    }
    const int at = atomic_fetch_add(&work->num_spans, 1);
    if (at >= work->capacity) {
        return;
    }
    work->spans[at] = (PufferSpan){thread, first, (double)begin * 1e-9, (double)end * 1e-9};
}

void puffer_collect_part(PufferVec* self, int first, int end) {
    StaticVec* vec = &self->vec;
    PufferCollect* work = &self->collect;
    const size_t agent = (size_t)self->agents[first];
    const size_t count = (size_t)self->agents[end] - agent;
    const size_t N = (size_t)vec->total_agents;
    const size_t heads = (size_t)puffer_ops.num_atns;
    const size_t row = (size_t)puffer_ops.obs_size * (size_t)puffer_ops.obs_bytes;
    const size_t mask = (size_t)puffer_ops.mask_size;
    const uint64_t began = now_ns();
    uint64_t before = began;
    uint64_t acting = 0;
    for (int t = 0; t < work->steps && !puffer_is_over(self); t++) {
        atomic_fetch_add(&work->in_act, 1);  // before `stop` is read: puffer_stop sees one or the other
        const bool stop = atomic_load(&work->stop);
        if (!stop) {
            work->act(work->act_context, t, (int)agent, (int)count);
        }
        atomic_fetch_sub(&work->in_act, 1);
        if (stop) {
            break;
        }
        const uint64_t acted = now_ns();
        acting += acted - before;
        const float* chosen = work->actions + ((size_t)t * N + agent) * heads;
        memcpy(vec->actions + agent * heads, chosen, count * heads * sizeof(float));
        const size_t next = ((size_t)t + 1) * N;
        const PufferRows* all = &work->rows;
        const PufferRows rows = {
            .first_agent = 0,
            .observations = all->observations + next * row,
            .rewards = all->rewards + next,
            .terminals = all->terminals + next,
            .masks = mask > 0 ? all->masks + next * mask : NULL,
        };
        puffer_ops.step(vec, self->agents, first, end, &rows);
        before = now_ns();
    }
    atomic_fetch_add(&work->act_ns, acting);
    atomic_fetch_add(&work->step_ns, before - began - acting);
    if (work->capacity > 0) {
        note(work, (int)agent, began, before);
    }
}

// Return how many environments form a part of a rollout: their agents get actions together. A part
// has at most about PUFFER_PART_AGENTS agents, and every thread gets the same number of parts.
static int part_size(const PufferVec* self) {
    const int64_t threads = puffer_pool_threads(self->pool);
    const int64_t agents = self->vec.total_agents;
    const int64_t at_once = threads * PUFFER_PART_AGENTS;
    const int64_t parts = (agents + at_once - 1) / at_once * threads;
    const int64_t size = (self->vec.size + parts - 1) / parts;
    return size > 0 ? (int)size : 1;
}

int puffer_collect(PufferVec* self, int steps, PufferAct act, void* act_context,
                   const float* actions, void* observations, float* rewards, float* terminals,
                   unsigned char* masks, PufferSpan* spans, int capacity) {
    const int groups = self->vec.buffers;
    if (!puffer_pool_begin(self->pool, 0, groups)) {
        return -1;
    }
    self->collect = (PufferCollect){
        .steps = steps,
        .act = act,
        .act_context = act_context,
        .actions = actions,
        .rows = {0, observations, rewards, terminals, masks},
        .spans = spans,
        .capacity = capacity,
    };
    self->collecting = true;
    const int size = part_size(self);
    for (int g = 0; g < groups; g++) {  // one by one: threads begin with different ones
        puffer_pool_launch(self->pool, g, 1, size);
    }
    return 0;
}

void puffer_stop(PufferVec* self) {
    PufferCollect* work = &self->collect;
    atomic_store(&work->stop, true);
    while (atomic_load(&work->in_act) > 0) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

int puffer_collected(PufferVec* self, double* seconds, int milliseconds) {
    for (int g = 0; g < self->vec.buffers; g++) {
        if (!puffer_pool_wait(self->pool, g, milliseconds)) {
            return puffer_is_over(self) ? PUFFER_OVER : PUFFER_UNDER_WAY;
        }
    }
    PufferCollect* work = &self->collect;
    self->collecting = false;
    if (puffer_is_over(self)) {
        return PUFFER_OVER;
    }
    seconds[0] = (double)atomic_load(&work->act_ns) * 1e-9;
    seconds[1] = (double)atomic_load(&work->step_ns) * 1e-9;
    const int found = atomic_load(&work->num_spans);
    return found < work->capacity ? found : work->capacity;
}
