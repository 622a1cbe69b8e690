// The functions a shared library exports: what vec/native/c_functions.py declares to ctypes.
//
// No function here aborts or prints. Functions that can be given wrong input return a code or, with
// text, one message in the caller's buffer; a second line, if any, is a hint.

#ifndef PUFFER_VEC_H
#define PUFFER_VEC_H

#include "ops.h"

#define PUFFER_ABI 11  // changes with any signature below; c_functions.py has it
#define PUFFER_EXPORT __attribute__((visibility("default")))

typedef struct PufferVec PufferVec;

// What functions that wait return instead of 0 or more. The caller, who may have been asked to stop
// meanwhile, calls them again; -1 milliseconds are as long as it takes.
#define PUFFER_UNDER_WAY (-1)  // so many milliseconds weren't enough
#define PUFFER_OVER (-2)       // no step is possible any more, puffer_ended says why

// {PUFFER_ABI, observation elements, 1 if they are floats, heads, mask bytes, height, width and
// channels of image observations (else 0, 0, 0), size of head 0, ...}: at most `capacity` numbers
// are written; the return value is how many there are.
PUFFER_EXPORT int puffer_spec(int* out, int capacity);

// Parameters, by their names. With `texts`, the values as they were written, for environments of
// 5.0; NULL without.
typedef struct {
    int count;
    const char* const* keys;
    const double* values;
    const char* const* texts;
} PufferKeywords;

// Create N = total_agents agents in `buffers` groups on the calling thread. NULL on failure, with
// the reason in `text`. On success `text` lists, separated by commas, the env keys nobody read.
// Keys, values and texts are copied; total_agents, num_buffers and num_threads are added to vec's.
// If the environments don't fill the groups exactly, the agents of each, in order, are written to
// `counts`: at most `capacity` numbers; otherwise nothing is.
PUFFER_EXPORT PufferVec* puffer_create(int total_agents, int buffers, int threads,
                                       unsigned int seed, const PufferKeywords* vec,
                                       const PufferKeywords* env, int* counts, int capacity,
                                       char* text, size_t text_size);

PUFFER_EXPORT int puffer_environments(const PufferVec* vec);

// Of each row (N,) the environment whose agent has it and, of 5.0's environments, whose seat that agent
// says it is: agents[i].policy. 0, or -1, and no policies, if environments don't say: those of 4.0.
PUFFER_EXPORT int puffer_seats(const PufferVec* vec, int* environments, int* policies);

// Tell environments, between two steps of every group, who plays in them: their `tag` (E,). 0, or -1 if
// they have none.
PUFFER_EXPORT int puffer_set_tags(PufferVec* vec, const int* tags);

// Number of threads that step (at most one per environment).
PUFFER_EXPORT int puffer_threads(const PufferVec* vec);

// Reset every environment, in order, on the calling thread, and write N rows. Waits for steps under
// way. masks may be NULL for an environment without masks, here and below. 0 or PUFFER_OVER.
PUFFER_EXPORT int puffer_reset(PufferVec* vec, void* observations, float* rewards,
                               float* terminals, unsigned char* masks);

// Begin a step of `count` groups, neighbours whose agents' rows are one after the other: actions
// (n, heads) are copied, rows (n, ...) are written until wait(). 0; -1, and nothing done, if one of
// them is stepping already.
PUFFER_EXPORT int puffer_send(PufferVec* vec, int group, int count, const float* actions,
                              void* observations, float* rewards, float* terminals,
                              unsigned char* masks);

// 0 when they are done and their rows are written, PUFFER_UNDER_WAY or PUFFER_OVER.
PUFFER_EXPORT int puffer_wait(PufferVec* vec, int group, int count, int milliseconds);

// What a thread did in puffer_collect: its number, its part's first agent, and when, in seconds of
// CLOCK_MONOTONIC.
typedef struct {
    int thread;
    int first;
    double begin;
    double end;
} PufferSpan;

// Choose the actions of agents first..first+count-1 at step t, from what arrived at t, and write
// them to `actions`. Called from several threads at once, for different agents; for one agent in
// the order of t.
typedef void (*PufferAct)(void* context, int t, int first, int count);

// Begin, `steps` times, to act for all agents and step them, on the pool's threads: nothing else
// runs between a part's step and its next action. Rows are of N agents and steps + 1 times: those
// of time 0 are there, those of t + 1 are written after actions (steps, N, heads) of time t. All
// memory is the threads' until puffer_collected says that it is done. At most `capacity` spans are
// written. 0; -1, and nothing done, if a group is stepping.
PUFFER_EXPORT int puffer_collect(PufferVec* vec, int steps, PufferAct act, void* act_context,
                                 const float* actions, void* observations, float* rewards,
                                 float* terminals, unsigned char* masks, PufferSpan* spans,
                                 int capacity);

// The number of spans when it is done, PUFFER_UNDER_WAY or PUFFER_OVER. seconds[0] and seconds[1]
// become the thread-seconds spent in `act` and in steps.
PUFFER_EXPORT int puffer_collected(PufferVec* vec, double* seconds, int milliseconds);

// End a rollout after the step that each of its threads is in, without waiting for those steps. When
// this returns nobody is in `act` any more, nor will be; other memory stays the threads' as before.
// Without a rollout under way nothing happens.
PUFFER_EXPORT void puffer_stop(PufferVec* vec);

// 1, with a message, if no step is possible any more: an environment called exit or abort, or one of
// its assertions failed, while it was stepped or reset, or puffer_abandon was called. Else 0. Logs can still be read; a state can't
// be saved, as half a step isn't one.
PUFFER_EXPORT int puffer_ended(PufferVec* vec, char* text, size_t text_size);

// Nobody will wait for steps under way, which may never end: what their threads may read or write
// must stay as long as the process.
PUFFER_EXPORT void puffer_abandon(PufferVec* vec);

// Means over the episodes that ended since the last call: the number of keys, 0 if no episode
// ended, -1 if there are more than `capacity`. Keys live as long as the library. May be called from
// any thread at any time: each group is read between two of its steps.
PUFFER_EXPORT int puffer_log(PufferVec* vec, const char** keys, double* values, int capacity);

// The same for one environment: the first, from *env on, where an episode ended since its log was
// taken. *env becomes its number.
PUFFER_EXPORT int puffer_next_log(PufferVec* vec, int* env, const char** keys, double* values,
                                  int capacity);

// Write everything that stepping depends on to `to`, if it fits into `capacity` bytes, between two
// steps of every group. The number of bytes needed (a multiple of 16), -1 if these environments
// can't be saved.
PUFFER_EXPORT int64_t puffer_save(PufferVec* vec, void* to, int64_t capacity);

// Go on from what puffer_save wrote for as many environments with as many agents each; the numbers
// of groups and threads may differ. `from` is aligned to 16 bytes. Waits for steps under way. 0, or
// -1 with the reason in `text`: then nothing was changed, unless an environment's my_load_state
// refused, after which the environments must be reset.
PUFFER_EXPORT int puffer_load(PufferVec* vec, const void* from, int64_t size, char* text,
                              size_t text_size);

// What a GPU that steps the environments itself must know of them: "Env rules.h", the struct's name and
// its header, in the binding's folder; NULL if the rules compile for a CPU alone (MY_GPU). Written
// to `numbers`: bytes of the struct, bytes before its log, floats of its log.
PUFFER_EXPORT const char* puffer_gpu_rules(int numbers[3]);

// Copy all structs to `to`, with zeros for pointers, between two steps of every group.
PUFFER_EXPORT void puffer_take_structs(PufferVec* vec, void* to);

// Go on from structs that were stepped elsewhere, and the rows of their last step: actions
// (N, heads) and what arrived. Logs are cleared. masks may be NULL for an environment without.
PUFFER_EXPORT void puffer_give_structs(PufferVec* vec, const void* structs, const float* actions,
                                       const void* observations, const float* rewards,
                                       const float* terminals, const unsigned char* masks);

// Add a log that was made elsewhere to the environments' own: what puffer_log reports next.
PUFFER_EXPORT void puffer_add_log(PufferVec* vec, const float* log);

// 1 if the library is linked with the real raylib, so that there can be a window; else 0.
PUFFER_EXPORT int puffer_can_render(void);

// Let an environment draw itself, on the calling thread, between two steps of every group. A window
// belongs to one thread: it must always be the same. 0, or 1 if the environment called exit, as it
// does when a key or the window asks for that.
PUFFER_EXPORT int puffer_render(PufferVec* vec, int env);

// Tell every environment, between two steps of every group, which scripted opponent to play against:
// 5.0's puf_set_bot_policy. 0, or -1 if they have none.
PUFFER_EXPORT int puffer_set_bot_policy(PufferVec* vec, int policy);

PUFFER_EXPORT double puffer_busy_seconds(PufferVec* vec);

// Finish, join the threads, close the environments, free everything. NULL is fine. 0, or
// PUFFER_UNDER_WAY, and nothing done, if steps take longer than that.
PUFFER_EXPORT int puffer_close(PufferVec* vec, int milliseconds);

// The generator environments see as rand_r, for tests.
PUFFER_EXPORT int puffer_rand_r(unsigned int* seed);

#endif
