// puffer_create: allocates the memory, divides the environments into groups, and reports errors of
// a configuration. It accesses the environment only through puffer_ops.

#include "collect.h"
#include "text.h"
#include "vec_struct.h"

#define SPARE_KEYS 256  // room for keys that are read and missing
#define MAX_THREADS 256

// ---- Keys and values ----------------------------------------------------------------------------

// Write an error message about configuration keys: those read but missing, then those with rejected
// values. Return true if there were any.
static bool complain_about_keys(const Dict* dict, const char* section, Text* text) {
    int missing = 0;
    for (int i = 0; i < dict->size; i++) {
        if (dict->items[i].missing) {
            if (missing++ == 0) {
                puffer_say(text, "missing keys in [%s]: ", section);
            }
            puffer_say(text, missing > 1 ? ", %s" : "%s", dict->items[i].key);
        }
    }
    if (dict->full) {
        puffer_say(text, ", and more than %d others", SPARE_KEYS);
    }
    if (missing > 0) {
        return true;
    }
    for (int i = 0; i < dict->size; i++) {
        const DictItem* item = &dict->items[i];
        if (item->expected != NULL) {
            puffer_say(text,
                       "%s.%s is %g, expected %s\nchange %s in section [%s] of the configuration",
                       section, item->key, item->value, item->expected, item->key, section);
            return true;
        }
    }
    return false;
}

static char* copy_text(const char* text, char** room) {
    char* copy = *room;
    const size_t bytes = strlen(text) + 1;
    memcpy(copy, text, bytes);
    *room += bytes;
    return copy;
}

static size_t text_bytes(const PufferKeywords* given) {
    size_t bytes = 0;
    for (int i = 0; i < given->count; i++) {
        bytes += strlen(given->keys[i]) + 1;
        bytes += given->texts == NULL ? 0 : strlen(given->texts[i]) + 1;
    }
    return bytes;
}

static Dict* copy_dict(const char* name, const PufferKeywords* given, char** room) {
    Dict* dict = create_dict(given->count + SPARE_KEYS);
    for (int i = 0; dict != NULL && i < given->count; i++) {
        const char* key = copy_text(given->keys[i], room);
        dict_set(dict, key, given->values[i]);
        if (given->texts != NULL) {
            DictItem* item = dict_get_unsafe(dict, key);
            item->str = copy_text(given->texts[i], room);
            puffer_dict_list(item);
            item->read = false;
        }
    }
    if (dict != NULL) {
        dict->name = name;
    }
    return dict;
}

// ---- Creation -----------------------------------------------------------------------------------

// Check that every environment has agents. Return false, with the reason in `text`, if one has none.
static bool have_agents(const StaticVec* vec, Text* text) {
    for (int e = 0; e < vec->size; e++) {
        int count = puffer_ops.num_agents(vec, e);
        if (count < 1) {
            puffer_say(text, "environment %d has num_agents %d, expected at least 1\n"
                "my_init (or my_vec_init) must set it", e, count);
            return false;
        }
    }
    return true;
}

// Divide the environments among the groups: set agents, buffer_env_starts and buffer_env_counts.
// Return false, with the reason in `text`, if the environments don't fill the groups exactly.
static bool assign_groups(PufferVec* self, Text* text) {
    StaticVec* vec = &self->vec;
    int agent = 0;
    memset(vec->buffer_env_starts, 0, (size_t)vec->buffers * sizeof(int));
    memset(vec->buffer_env_counts, 0, (size_t)vec->buffers * sizeof(int));
    for (int e = 0; e < vec->size; e++) {
        int count = puffer_ops.num_agents(vec, e);
        int group = agent / vec->agents_per_buffer;
        int end = (group + 1) * vec->agents_per_buffer;
        if (agent + count > end || group >= vec->buffers) {
            puffer_say(text,
                "vec.total_agents / vec.num_buffers is %d, but environment %d has %d agents, "
                "of which only %d fit\nmake it a multiple of the agents per environment",
                vec->agents_per_buffer, e, count, group >= vec->buffers ? 0 : end - agent);
            return false;
        }
        if (vec->buffer_env_counts[group]++ == 0) {
            vec->buffer_env_starts[group] = e;
        }
        self->agents[e] = agent;
        agent += count;
    }
    self->agents[vec->size] = agent;
    if (agent != vec->total_agents) {
        puffer_say(text,
            "my_vec_init made %d environments with %d agents, expected vec.total_agents %d\n"
            "make it fill all agents, or choose vec.total_agents to fit",
            vec->size, agent, vec->total_agents);
        return false;
    }
    return true;
}

static bool allocate_rows(StaticVec* vec) {
    const size_t n = (size_t)vec->total_agents;
    vec->observations = calloc(n, (size_t)puffer_ops.obs_size * (size_t)puffer_ops.own_obs_bytes);
    vec->actions = calloc(n, (size_t)puffer_ops.num_atns * sizeof(float));
    vec->rewards = calloc(n, sizeof(float));
    vec->terminals = calloc(n, sizeof(float));
    if (puffer_ops.own_mask_size > 0) {
        vec->action_mask = calloc(n, (size_t)puffer_ops.own_mask_size);
    }
    vec->gpu_observations = vec->observations;
    vec->gpu_actions = vec->actions;
    vec->gpu_rewards = vec->rewards;
    vec->gpu_terminals = vec->terminals;
    vec->gpu_action_mask = vec->action_mask;
    vec->obs_size = puffer_ops.obs_size;
    vec->num_atns = puffer_ops.num_atns;
    vec->action_mask_size = puffer_ops.own_mask_size;
    return vec->observations != NULL && vec->actions != NULL && vec->rewards != NULL &&
           vec->terminals != NULL && (puffer_ops.own_mask_size == 0 || vec->action_mask != NULL);
}

typedef struct {
    PufferVec* self;
    int group;
    int first;
    int end;
} Chunk;

static void step_environments(void* context) {
    const Chunk* chunk = context;
    PufferVec* self = chunk->self;
    if (self->collecting) {
        puffer_collect_part(self, chunk->first, chunk->end);
    } else {
        puffer_ops.step(&self->vec, self->agents, chunk->first, chunk->end,
                        &self->rows[chunk->group]);
    }
}

static void step_chunk(void* context, int group, int first, int end) {
    PufferVec* self = context;
    const int start = self->vec.buffer_env_starts[group];
    Chunk chunk = {self, group, start + first, start + end};
    if (!puffer_is_over(self)) {
        puffer_attempt(self, step_environments, &chunk, chunk.first, chunk.end, "stepped");
    }
}

typedef struct {
    PufferVec* self;
    unsigned int seed;
    bool created;
} Creation;

static void create_envs(void* context) {
    Creation* creation = context;
    PufferVec* self = creation->self;
    creation->created =
        puffer_ops.create(&self->vec, creation->seed, self->vec_kwargs, self->env_kwargs);
}

// Create all environments. Return false, with the reason in `text`, if one called exit or abort.
static bool try_to_create(Creation* creation, Text* text) {
    StaticVec* vec = &creation->self->vec;
    PufferFailure failure;
    const bool finished = puffer_guard(create_envs, creation, &failure);
    puffer_set_random(NULL);
    if (!finished) {
        puffer_say_failure(&failure, creation->seed, failure.env, failure.env, "created", text);
        free(vec->envs);
        vec->envs = NULL;  // incomplete, so they can't be closed
        vec->size = 0;
    }
    return finished;
}

typedef struct {
    int* at;
    int capacity;
} Counts;

// Create the environments, the arrays of their rows, and the pool of threads. Return false, with
// the reason in `text`, if any of this fails.
static bool build(PufferVec* self, int threads, unsigned int seed, Counts* misfit, Text* text) {
    StaticVec* vec = &self->vec;
    vec->buffer_env_starts = calloc((size_t)vec->buffers, sizeof(int));
    vec->buffer_env_counts = calloc((size_t)vec->buffers, sizeof(int));
    self->rows = calloc((size_t)vec->buffers, sizeof(PufferRows));
    vec->random = calloc((size_t)vec->total_agents, sizeof(unsigned int));
    if (vec->buffer_env_starts == NULL || vec->buffer_env_counts == NULL || self->rows == NULL ||
        vec->random == NULL || self->vec_kwargs == NULL || self->env_kwargs == NULL) {
        puffer_say(text, "out of memory");
        return false;
    }
    dict_set(self->vec_kwargs, "total_agents", vec->total_agents);
    dict_set(self->vec_kwargs, "num_buffers", vec->buffers);
    dict_set(self->vec_kwargs, "num_threads", threads);
    Creation creation = {self, seed, false};
    if (!try_to_create(&creation, text)) {
        return false;
    }
    if (complain_about_keys(self->env_kwargs, "env", text) ||
        complain_about_keys(self->vec_kwargs, "vec", text)) {
        return false;
    }
    if (!creation.created && vec->size == 0) {
        puffer_say(text, "no environment could be created for vec.total_agents %d",
                   vec->total_agents);
        return false;
    }
    self->agents = calloc((size_t)vec->size + 1, sizeof(int));
    if (self->agents == NULL || !allocate_rows(vec)) {
        puffer_say(text, "out of memory for %d agents", vec->total_agents);
        return false;
    }
    if (!have_agents(vec, text)) {
        return false;
    }
    if (!assign_groups(self, text)) {
        for (int e = 0; e < vec->size && e < misfit->capacity; e++) {
            misfit->at[e] = puffer_ops.num_agents(vec, e);
        }
        return false;
    }
    for (int e = 0; e < vec->size; e++) {
        puffer_ops.bind(vec, e, self->agents[e]);
    }
    threads = threads > vec->size ? vec->size : threads;
    threads = threads > MAX_THREADS ? MAX_THREADS : threads;
    threads = threads < 1 ? 1 : threads;
    const int* counts = vec->buffer_env_counts;
    self->pool = puffer_pool_create(threads, vec->buffers, counts, step_chunk, self);
    if (self->pool == NULL) {
        puffer_say(text, "%d threads could not be started\nlower vec.num_threads", threads);
        return false;
    }
    return true;
}

PufferVec* puffer_create(int total_agents, int buffers, int threads, unsigned int seed,
                         const PufferKeywords* vec_given, const PufferKeywords* env_given,
                         int* counts, int capacity, char* text_at, size_t text_size) {
    Text text = {text_at, text_size};
    Counts misfit = {counts, capacity};
    puffer_say(&text, "%s", "");
    puffer_watch_crashes();
    if (total_agents < 1 || buffers < 1) {
        puffer_say(&text, "vec.total_agents %d and vec.num_buffers %d must be at least 1",
                   total_agents, buffers);
        return NULL;
    }
    if (total_agents % buffers != 0) {
        puffer_say(&text, "vec.total_agents %d is not a multiple of vec.num_buffers %d\n%d or %d",
            total_agents, buffers, total_agents - total_agents % buffers,
            total_agents - total_agents % buffers + buffers);
        return NULL;
    }
    PufferVec* self = calloc(1, sizeof(PufferVec));
    char* room = malloc(1 + text_bytes(vec_given) + text_bytes(env_given));
    if (self == NULL || room == NULL) {
        free(self);
        free(room);
        puffer_say(&text, "out of memory");
        return NULL;
    }
    self->keys = room;
    self->seed = seed;
    self->vec_kwargs = copy_dict("vec", vec_given, &room);
    self->env_kwargs = copy_dict("env", env_given, &room);
    self->vec.total_agents = total_agents;
    self->vec.buffers = buffers;
    self->vec.agents_per_buffer = total_agents / buffers;
    if (!build(self, threads, seed, &misfit, &text)) {
        puffer_close(self, -1);
        return NULL;
    }
    for (int i = 0, unread = 0; i < self->env_kwargs->size; i++) {
        if (!self->env_kwargs->items[i].read) {
            puffer_say(&text, unread++ ? ",%s" : "%s", self->env_kwargs->items[i].key);
        }
    }
    return self;
}
