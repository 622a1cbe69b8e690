// See state.h.

#include "state.h"

#include <inttypes.h>
#include <string.h>

#define ALIGNMENT 16  // bytes, so that an environment may read numbers in place

typedef struct {
    uint64_t env_bytes;  // sizeof(Env)
    uint64_t row_bytes;  // of one agent in all arrays
    uint64_t agents;     // N
    uint64_t envs;
} Head;

typedef struct {
    uint64_t agents;
    uint64_t bytes;  // number of bytes that follow, without padding
} Record;

typedef struct {
    void* at;
    size_t bytes;
} Array;

enum { ARRAYS = 6 };

static size_t fill_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

// List the arrays of rows that a saved state contains, with their sizes. The next step overwrites
// most rows, but environments may read them before. The observations of environments with
// MY_OBS_FULL are left out: they are unused.
static void list_arrays(const StaticVec* vec, Array* arrays) {
    const size_t n = (size_t)vec->total_agents;
    const size_t row = (size_t)puffer_ops.obs_size * (size_t)puffer_ops.own_obs_bytes;
    arrays[0] = (Array){vec->observations, puffer_ops.obs_full ? 0 : n * row};
    arrays[1] = (Array){vec->actions, n * (size_t)puffer_ops.num_atns * sizeof(float)};
    arrays[2] = (Array){vec->rewards, n * sizeof(float)};
    arrays[3] = (Array){vec->terminals, n * sizeof(float)};
    arrays[4] = (Array){vec->action_mask, n * (size_t)puffer_ops.own_mask_size};
    const size_t draws = puffer_ops.uses_rand ? (size_t)vec->size : 0;
    arrays[5] = (Array){vec->random, draws * sizeof(unsigned int)};
}

static Head describe(const StaticVec* vec) {
    Array arrays[ARRAYS];
    list_arrays(vec, arrays);
    size_t bytes = 0;
    for (int i = 0; i < ARRAYS; i++) {
        bytes += arrays[i].bytes;
    }
    const size_t n = (size_t)vec->total_agents;
    return (Head){puffer_ops.env_bytes, bytes / n, n, (uint64_t)vec->size};
}

// ---- Writing ------------------------------------------------------------------------------------

// Append a part of the saved state: copy it to to[at] unless `to` is NULL, and pad it with zeros.
// Return the position of the next part.
static size_t put(unsigned char* to, size_t at, const void* from, size_t bytes) {
    const size_t filled = fill_up(bytes);
    if (to != NULL && bytes > 0) {
        memcpy(to + at, from, bytes);
        memset(to + at + bytes, 0, filled - bytes);
    }
    return at + filled;
}

size_t puffer_write_state(const StaticVec* vec, const int* agents, unsigned char* to) {
    const Head head = describe(vec);
    size_t at = put(to, 0, &head, sizeof(head));
    for (int e = 0; e < vec->size; e++) {
        const size_t bytes = puffer_ops.state_size(vec, e);
        const Record record = {(uint64_t)(agents[e + 1] - agents[e]), bytes};
        at = put(to, at, &record, sizeof(record));
        if (to != NULL) {
            memset(to + at, 0, fill_up(bytes));
            puffer_ops.save(vec, e, to + at);
        }
        at += fill_up(bytes);
    }
    Array arrays[ARRAYS];
    list_arrays(vec, arrays);
    for (int i = 0; i < ARRAYS; i++) {
        at = put(to, at, arrays[i].at, arrays[i].bytes);
    }
    return at;
}

// ---- Reading ------------------------------------------------------------------------------------

typedef struct {
    StaticVec* vec;
    const int* agents;
    const unsigned char* at;
    size_t left;
    bool load;  // true to load every part, false to check only whether it fits
    Text* text;
} Reader;

// Read the next part of a saved state: return a pointer to it, or NULL, with the reason in `text`,
// if the part is incomplete.
static const void* get(Reader* reader, uint64_t bytes) {
    if (bytes > reader->left || fill_up(bytes) > reader->left) {
        puffer_say(reader->text, "the state ends early");
        return NULL;
    }
    const void* part = reader->at;
    reader->at += fill_up(bytes);
    reader->left -= fill_up(bytes);
    return part;
}

static bool read_head(Reader* reader) {
    const Head* found = get(reader, sizeof(Head));
    if (found == NULL) {
        return false;
    }
    const Head wanted = describe(reader->vec);
    if (memcmp(found, &wanted, sizeof(Head)) == 0) {
        return true;
    }
    puffer_say(reader->text,
               "the state has %" PRIu64 " environments of %" PRIu64 " bytes and %" PRIu64
               " agents of %" PRIu64 " bytes, expected %" PRIu64 " of %" PRIu64 " and %" PRIu64
               " of %" PRIu64,
               found->envs, found->env_bytes, found->agents, found->row_bytes, wanted.envs,
               wanted.env_bytes, wanted.agents, wanted.row_bytes);
    return false;
}

static bool read_env(Reader* reader, int env) {
    const Record* record = get(reader, sizeof(Record));
    const void* bytes = record == NULL ? NULL : get(reader, record->bytes);
    if (bytes == NULL) {
        return false;
    }
    const int agents = reader->agents[env + 1] - reader->agents[env];
    if (record->agents != (uint64_t)agents) {
        puffer_say(reader->text, "environment %d of the state has %" PRIu64 " agents, expected %d",
                   env, record->agents, agents);
        return false;
    }
    if (reader->load && !puffer_ops.load(reader->vec, env, bytes, record->bytes)) {
        puffer_say(reader->text, "environment %d can't load its %" PRIu64 " bytes", env,
                   record->bytes);
        return false;
    }
    return true;
}

static bool read_all(Reader reader) {
    bool fits = read_head(&reader);
    for (int e = 0; e < reader.vec->size && fits; e++) {
        fits = read_env(&reader, e);
    }
    Array arrays[ARRAYS];
    list_arrays(reader.vec, arrays);
    for (int i = 0; i < ARRAYS && fits; i++) {
        const void* from = get(&reader, arrays[i].bytes);
        fits = from != NULL;
        if (fits && reader.load && arrays[i].bytes > 0) {
            memcpy(arrays[i].at, from, arrays[i].bytes);
        }
    }
    if (fits && reader.left > 0) {
        puffer_say(reader.text, "the state goes on for %zu bytes after its end", reader.left);
        fits = false;
    }
    return fits;
}

bool puffer_read_state(StaticVec* vec, const int* agents, const unsigned char* from, size_t size,
                       Text* text) {
    if (puffer_ops.load == NULL) {
        puffer_say(text, "the environment defines neither MY_STATE_PLAIN nor MY_STATE");
        return false;
    }
    Reader reader = {vec, agents, from, size, false, text};
    if (!read_all(reader)) {
        return false;
    }
    reader.load = true;
    return read_all(reader);
}
