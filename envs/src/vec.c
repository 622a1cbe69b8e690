// See vec.h. Defines all but puffer_create (create.c). Accesses the environment only through
// puffer_ops.

#include "state.h"
#include "vec_struct.h"

int puffer_spec(int* out, int capacity) {
    const int* shape = puffer_ops.obs_shape;
    int numbers[] = {PUFFER_ABI, puffer_ops.obs_size, puffer_ops.obs_is_float, puffer_ops.num_atns,
                     puffer_ops.mask_size, shape[0], shape[1], shape[2]};
    const int fixed = (int)(sizeof(numbers) / sizeof(int));
    for (int i = 0; i < fixed + puffer_ops.num_atns && i < capacity; i++) {
        out[i] = i < fixed ? numbers[i] : puffer_ops.act_sizes[i - fixed];
    }
    return fixed + puffer_ops.num_atns;
}

int puffer_environments(const PufferVec* self) {
    return self->vec.size;
}

int puffer_threads(const PufferVec* self) {
    return puffer_pool_threads(self->pool);
}

static void hold_all(PufferVec* self) {
    for (int g = 0; g < self->vec.buffers; g++) {
        puffer_pool_hold(self->pool, g);
    }
}

static void release_all(PufferVec* self) {
    for (int g = 0; g < self->vec.buffers; g++) {
        puffer_pool_release(self->pool, g);
    }
}

typedef struct {
    PufferVec* self;
    PufferRows rows;
} Reset;

static void reset(void* context) {
    const Reset* all = context;
    StaticVec* vec = &all->self->vec;
    puffer_ops.reset(vec, all->self->agents, 0, vec->size, &all->rows);
}

int puffer_reset(PufferVec* self, void* observations, float* rewards, float* terminals,
                 unsigned char* masks) {
    Reset all = {self, {0, observations, rewards, terminals, masks}};
    hold_all(self);
    if (!puffer_is_over(self)) {
        puffer_attempt(self, reset, &all, 0, self->vec.size, "reset");
    }
    release_all(self);
    return puffer_is_over(self) ? PUFFER_OVER : 0;
}

// Clean up after a rollout whose caller was interrupted, so that new steps are possible. Return
// false while it is in progress.
static bool forget_rollout(PufferVec* self) {
    if (self->collecting) {
        for (int g = 0; g < self->vec.buffers; g++) {
            if (!puffer_pool_wait(self->pool, g, 0)) {
                return false;
            }
        }
        self->collecting = false;
    }
    return true;
}

int puffer_send(PufferVec* self, int group, int count, const float* actions, void* observations,
                float* rewards, float* terminals, unsigned char* masks) {
    StaticVec* vec = &self->vec;
    if (!forget_rollout(self) || !puffer_pool_begin(self->pool, group, count)) {
        return -1;
    }
    const size_t n = (size_t)vec->agents_per_buffer;
    const size_t heads = (size_t)puffer_ops.num_atns;
    const size_t row = (size_t)puffer_ops.obs_size * (size_t)puffer_ops.obs_bytes;
    const size_t legal = (size_t)puffer_ops.mask_size;
    memcpy(vec->actions + (size_t)group * n * heads, actions,
           (size_t)count * n * heads * sizeof(float));
    for (int g = 0; g < count; g++) {
        const size_t first = (size_t)g * n;
        self->rows[group + g] = (PufferRows){(group + g) * (int)n,
                                             (unsigned char*)observations + first * row,
                                             rewards + first, terminals + first,
                                             masks == NULL ? NULL : masks + first * legal};
    }
    puffer_pool_launch(self->pool, group, count, 0);
    return 0;
}

int puffer_wait(PufferVec* self, int group, int count, int milliseconds) {
    bool done = true;
    for (int g = group; done && g < group + count; g++) {
        done = puffer_pool_wait(self->pool, g, milliseconds);
    }
    return puffer_is_over(self) ? PUFFER_OVER : done ? 0 : PUFFER_UNDER_WAY;
}

typedef struct {
    void* total;
    Dict* out;
} Means;

static void write_log(void* context) {
    const Means* means = context;
    puffer_ops.write_log(means->total, means->out);
}

// Write the means of summed episode logs, *total, to keys and values. Return the number of keys, -1
// for too many.
static int report(PufferVec* self, void* total, const char** keys, double* values, int capacity) {
    Means means = {total, create_dict(capacity)};
    if (means.out == NULL) {
        return -1;
    }
    puffer_attempt(self, write_log, &means, 0, self->vec.size, "logged");
    const Dict* out = means.out;
    const int size = out->full || out->size > capacity ? -1 : out->size;
    for (int i = 0; i < size; i++) {
        keys[i] = out->items[i].key;
        values[i] = out->items[i].value;
    }
    puffer_free_dict(means.out);
    return size;
}

int puffer_log(PufferVec* self, const char** keys, double* values, int capacity) {
    StaticVec* vec = &self->vec;
    void* total = calloc(1, puffer_ops.log_bytes);
    if (total == NULL) {
        return -1;
    }
    for (int g = 0; g < vec->buffers; g++) {
        const int first = vec->buffer_env_starts[g];
        puffer_pool_hold(self->pool, g);
        puffer_ops.take_log(vec, first, first + vec->buffer_env_counts[g], total);
        puffer_pool_release(self->pool, g);
    }
    const int size = report(self, total, keys, values, capacity);
    free(total);
    return size;
}

int puffer_next_log(PufferVec* self, int* env, const char** keys, double* values, int capacity) {
    StaticVec* vec = &self->vec;
    void* total = calloc(1, puffer_ops.log_bytes);
    if (total == NULL) {
        return -1;
    }
    bool found = false;
    for (int g = 0; g < vec->buffers && !found; g++) {
        const int end = vec->buffer_env_starts[g] + vec->buffer_env_counts[g];
        if (*env >= end) {
            continue;
        }
        puffer_pool_hold(self->pool, g);
        while (*env < end && !(found = puffer_ops.take_log(vec, *env, *env + 1, total))) {
            *env += 1;
        }
        puffer_pool_release(self->pool, g);
    }
    const int size = report(self, total, keys, values, capacity);
    free(total);
    return size;
}

int64_t puffer_save(PufferVec* self, void* to, int64_t capacity) {
    if (puffer_ops.save == NULL || puffer_is_over(self)) {
        return -1;
    }
    hold_all(self);
    const int64_t size = (int64_t)puffer_write_state(&self->vec, self->agents, NULL);
    if (size <= capacity) {
        puffer_write_state(&self->vec, self->agents, to);
    }
    release_all(self);
    return size;
}

int puffer_load(PufferVec* self, const void* from, int64_t size, char* text_at, size_t text_size) {
    Text text = {text_at, text_size};
    hold_all(self);
    const bool loaded = puffer_read_state(&self->vec, self->agents, from, (size_t)size, &text);
    release_all(self);
    return loaded ? 0 : -1;
}

const char* puffer_gpu_rules(int numbers[3]) {
    numbers[0] = (int)puffer_ops.env_bytes;
    numbers[1] = (int)puffer_ops.log_at;
    numbers[2] = (int)(puffer_ops.log_bytes / sizeof(float));
    return puffer_ops.gpu;
}

void puffer_take_structs(PufferVec* self, void* to) {
    hold_all(self);
    memset(to, 0, (size_t)self->vec.size * puffer_ops.env_bytes);
    for (int e = 0; e < self->vec.size; e++) {
        puffer_ops.save(&self->vec, e, (char*)to + (size_t)e * puffer_ops.env_bytes);
    }
    release_all(self);
}

void puffer_give_structs(PufferVec* self, const void* structs, const float* actions,
                         const void* observations, const float* rewards, const float* terminals,
                         const unsigned char* masks) {
    StaticVec* vec = &self->vec;
    const size_t n = (size_t)vec->total_agents;
    const size_t row = (size_t)puffer_ops.obs_size * (size_t)puffer_ops.own_obs_bytes;
    hold_all(self);
    for (size_t e = 0; e < (size_t)vec->size; e++) {
        char* env = (char*)vec->envs + e * puffer_ops.env_bytes;
        const char* from = (const char*)structs + e * puffer_ops.env_bytes;
        puffer_ops.load(vec, (int)e, from, puffer_ops.env_bytes);
        memset(env + puffer_ops.log_at, 0, puffer_ops.log_bytes);
    }
    memcpy(vec->actions, actions, n * (size_t)puffer_ops.num_atns * sizeof(float));
    memcpy(vec->observations, observations, n * row);
    memcpy(vec->rewards, rewards, n * sizeof(float));
    memcpy(vec->terminals, terminals, n * sizeof(float));
    if (puffer_ops.mask_size > 0) {
        memcpy(vec->action_mask, masks, n * (size_t)puffer_ops.mask_size);
    }
    release_all(self);
}

void puffer_add_log(PufferVec* self, const float* log) {
    hold_all(self);
    float* own = (float*)((char*)self->vec.envs + puffer_ops.log_at);
    for (size_t i = 0; i < puffer_ops.log_bytes / sizeof(float); i++) {
        own[i] += log[i];
    }
    release_all(self);
}

int puffer_can_render(void) {
#ifdef PUFFER_WINDOW
    return 1;
#else
    return 0;
#endif
}

typedef struct {
    StaticVec* vec;
    int env;
} Picture;

static void draw(void* context) {
    const Picture* picture = context;
    puffer_ops.render(picture->vec, picture->env);
}

int puffer_render(PufferVec* self, int env) {
    Picture picture = {&self->vec, env};
    PufferFailure failure;
    hold_all(self);
    const bool drawn = puffer_guard(draw, &picture, &failure);
    puffer_set_random(NULL);
    release_all(self);
    return drawn ? 0 : 1;
}

typedef struct {
    StaticVec* vec;
    int policy;
} Bot;

static void set_bots(void* context) {
    const Bot* bot = context;
    for (int e = 0; e < bot->vec->size; e++) {
        puffer_ops.set_bot(bot->vec, e, bot->policy);
    }
}

int puffer_set_bot_policy(PufferVec* self, int policy) {
    Bot bot = {&self->vec, policy};
    if (puffer_ops.set_bot == NULL) {
        return -1;
    }
    hold_all(self);
    puffer_attempt(self, set_bots, &bot, 0, self->vec.size, "given another opponent");
    release_all(self);
    return 0;
}

int puffer_seats(const PufferVec* self, int* environments, int* policies) {
    const StaticVec* vec = &self->vec;
    for (int e = 0; e < vec->size; e++) {
        for (int row = self->agents[e]; row < self->agents[e + 1]; row++) {
            environments[row] = e;
        }
        if (puffer_ops.seat_policies != NULL) {
            puffer_ops.seat_policies(vec, e, policies);
        }
    }
    return puffer_ops.seat_policies == NULL ? -1 : 0;
}

int puffer_set_tags(PufferVec* self, const int* tags) {
    if (puffer_ops.set_tag == NULL) {
        return -1;
    }
    hold_all(self);
    for (int e = 0; e < self->vec.size; e++) {
        puffer_ops.set_tag(&self->vec, e, tags[e]);
    }
    release_all(self);
    return 0;
}

double puffer_busy_seconds(PufferVec* self) {
    return puffer_pool_busy_seconds(self->pool);
}

static void close_environments(void* context) {
    puffer_ops.close(context);
}

int puffer_close(PufferVec* self, int milliseconds) {
    if (self == NULL) {
        return 0;
    }
    for (int g = 0; g < self->vec.buffers && self->pool != NULL; g++) {
        if (!puffer_pool_wait(self->pool, g, milliseconds)) {
            return PUFFER_UNDER_WAY;
        }
    }
    puffer_pool_destroy(self->pool);
    PufferFailure failure;
    puffer_guard(close_environments, &self->vec, &failure);  // calling exit is allowed here
    free(self->vec.buffer_env_starts);
    free(self->vec.buffer_env_counts);
    free(self->vec.observations);
    free(self->vec.actions);
    free(self->vec.rewards);
    free(self->vec.terminals);
    free(self->vec.action_mask);
    free(self->vec.random);
    free(self->agents);
    free(self->rows);
    puffer_free_dict(self->vec_kwargs);
    puffer_free_dict(self->env_kwargs);
    free(self->keys);
    free(self);
    return 0;
}
