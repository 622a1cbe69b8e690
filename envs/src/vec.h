// Functions that the shared library exports. vec/native/c_functions.py declares them to ctypes.
//
// No function aborts or prints. Functions that can get wrong input return a code, or write a
// message to `text`. A second line of the message is a hint.

#ifndef PUFFER_VEC_H
#define PUFFER_VEC_H

#include "ops.h"

// Version of the signatures below. c_functions.py has the same number; change both.
#define PUFFER_ABI 11
#define PUFFER_EXPORT __attribute__((visibility("default")))

typedef struct PufferVec PufferVec;

// Functions that wait return one of these codes, or a number >= 0 when they are done. After
// PUFFER_UNDER_WAY the caller checks for signals and calls again. A timeout of -1 milliseconds is
// none.
#define PUFFER_UNDER_WAY (-1)  // not done within the timeout
#define PUFFER_OVER (-2)       // no further step is possible; puffer_ended returns the reason

// Describe the observations and actions of one agent in numbers. Writes at most `capacity` of them
// to `out`: PUFFER_ABI; observation elements; 1 if they are floats; heads; mask bytes; height,
// width and channels of image observations (else 0, 0, 0); number of choices of each head. Return
// how many numbers this takes.
PUFFER_EXPORT int puffer_spec(int* out, int capacity);

// Named parameters. `texts` are the values as written in a configuration, which environments of 5.0
// may read; NULL for 4.0.
typedef struct {
    int count;
    const char* const* keys;
    const double* values;
    const char* const* texts;
} PufferKeywords;

// Create environments with N = total_agents agents in `buffers` groups on the calling thread.
// Return NULL on failure, with the reason in `text`. On success `text` lists the env keys that no
// environment reads, separated by commas. Keys, values and texts are copied. total_agents,
// num_buffers and num_threads are added to `vec`. Creation fails if the environments don't fill the
// groups exactly. In this case the number of agents of each environment is written to `counts`, at
// most `capacity` numbers.
PUFFER_EXPORT PufferVec* puffer_create(int total_agents, int buffers, int threads,
                                       unsigned int seed, const PufferKeywords* vec,
                                       const PufferKeywords* env, int* counts, int capacity,
                                       char* text, size_t text_size);

// Return the number of environments E.
PUFFER_EXPORT int puffer_environments(const PufferVec* vec);

// Write, for each agent's row, the index of its environment to `environments` (N,), and the policy
// that plays it (agents[i].policy) to `policies` (N,). Return 0; or -1 for environments of 4.0,
// which have no policies.
PUFFER_EXPORT int puffer_seats(const PufferVec* vec, int* environments, int* policies);

// Set every environment's tag (E,): the largest index of an opponent that plays in it, else 0. Waits
// for steps in progress. Return 0, or -1 if the environments have no tag.
PUFFER_EXPORT int puffer_set_tags(PufferVec* vec, const int* tags);

// Return the number of threads that step environments, at most one per environment.
PUFFER_EXPORT int puffer_threads(const PufferVec* vec);

// Reset every environment, in order, on the calling thread, and write the N agents' first rows.
// Waits for steps in progress. Here and below `masks` may be NULL for an environment without masks.
// Return 0 or PUFFER_OVER.
PUFFER_EXPORT int puffer_reset(PufferVec* vec, void* observations, float* rewards,
                               float* terminals, unsigned char* masks);

// Start a step of the environments in `count` neighbouring groups, which have n agents together,
// without waiting. actions (n, heads) are copied; the rows (n, ...) are complete after puffer_wait.
// Return 0, or -1 without starting a step if one of the groups is stepping already.
PUFFER_EXPORT int puffer_send(PufferVec* vec, int group, int count, const float* actions,
                              void* observations, float* rewards, float* terminals,
                              unsigned char* masks);

// Wait until the environments of `count` groups have stepped. Return 0, PUFFER_UNDER_WAY after the
// timeout, or PUFFER_OVER if no step is possible any more.
PUFFER_EXPORT int puffer_wait(PufferVec* vec, int group, int count, int milliseconds);

// A thread's work in puffer_collect: number of the thread, first agent, and begin and end in
// seconds of CLOCK_MONOTONIC.
typedef struct {
    int thread;
    int first;
    double begin;
    double end;
} PufferSpan;

// Choose the actions of agents first..first+count-1 at step t from the rows of time t, and write
// them to `actions`. Called by several threads at once for different agents, in the order of t for
// each agent.
typedef void (*PufferAct)(void* context, int t, int first, int count);

// Start a rollout: act for all agents and step them `steps` times, on the pool's threads. A thread
// runs all steps of some environments, then of others. Rows are (steps + 1, N, ...): time 0 is
// input, time t + 1 is written after the actions (steps, N, heads) of time t. The threads use the
// arrays until puffer_collected returns anything but PUFFER_UNDER_WAY. At most `capacity` spans are
// written. Return 0, or -1 without starting if a group is stepping.
PUFFER_EXPORT int puffer_collect(PufferVec* vec, int steps, PufferAct act, void* act_context,
                                 const float* actions, void* observations, float* rewards,
                                 float* terminals, unsigned char* masks, PufferSpan* spans,
                                 int capacity);

// Wait for the end of a rollout. Return the number of written spans, PUFFER_UNDER_WAY or
// PUFFER_OVER. Write the thread-seconds spent in `act` and in steps to seconds[0] and seconds[1].
PUFFER_EXPORT int puffer_collected(PufferVec* vec, double* seconds, int milliseconds);

// End a rollout after the current step of each thread, without waiting for these steps. After this
// returns, `act` isn't called any more; the threads may still use the other memory. Does nothing
// without a rollout in progress.
PUFFER_EXPORT void puffer_stop(PufferVec* vec);

// Return 1 and the reason in `text` if no further step is possible: an environment called exit or
// abort or failed an assertion while it was stepped or reset, or puffer_abandon was called. Else
// return 0. Logs can still be read. A state can't be saved, since the last step is incomplete.
PUFFER_EXPORT int puffer_ended(PufferVec* vec, char* text, size_t text_size);

// Stop waiting for steps in progress, which may never end. The memory that their threads use must
// stay valid until the process ends.
PUFFER_EXPORT void puffer_abandon(PufferVec* vec);

// Write the mean metrics of all episodes that ended since the last call. Return the number of keys:
// 0 if no episode ended, -1 for more than `capacity` keys. Keys live as long as the library. Any
// thread may call this at any time: each group is read between two of its steps.
PUFFER_EXPORT int puffer_log(PufferVec* vec, const char** keys, double* values, int capacity);

// Write the mean metrics of one environment's episodes, otherwise as puffer_log does: of the first
// environment with a number >= *env in which an episode ended since its log was read. Write its
// number to *env.
PUFFER_EXPORT int puffer_next_log(PufferVec* vec, int* env, const char** keys, double* values,
                                  int capacity);

// Write the state of all environments to `to` if it fits into `capacity` bytes. Waits for steps in
// progress. Return the number of bytes needed, a multiple of 16, or -1 if these environments can't
// be saved.
PUFFER_EXPORT int64_t puffer_save(PufferVec* vec, void* to, int64_t capacity);

// Restore all environments from a state that puffer_save wrote for the same numbers of environments
// and agents; the numbers of groups and threads may differ. `from` is aligned to 16 bytes. Waits
// for steps in progress. Return 0, or -1 with the reason in `text`. On -1 nothing was changed,
// unless an environment's my_load_state failed: then reset the environments.
PUFFER_EXPORT int puffer_load(PufferVec* vec, const void* from, int64_t size, char* text,
                              size_t text_size);

// Return what is needed to compile the environments for a GPU: the name of the struct, a space, and
// its header's file name, for example "Squared squared.h". NULL without MY_GPU. Write the size of
// the struct in bytes, the offset of its log, and the number of floats in the log to `numbers`.
PUFFER_EXPORT const char* puffer_gpu_rules(int numbers[3]);

// Copy the structs of all environments to `to`, for a GPU, with zeros for pointers. Waits for steps
// in progress.
PUFFER_EXPORT void puffer_take_structs(PufferVec* vec, void* to);

// Replace the structs of all environments by ones that a GPU stepped, and the rows by those of the
// GPU's last step: actions (N, heads), and the observations, rewards, terminals and masks after
// them. Clears the logs.
PUFFER_EXPORT void puffer_give_structs(PufferVec* vec, const void* structs, const float* actions,
                                       const void* observations, const float* rewards,
                                       const float* terminals, const unsigned char* masks);

// Add the episode log that a GPU summed to the environments' logs, for the next puffer_log.
PUFFER_EXPORT void puffer_add_log(PufferVec* vec, const float* log);

// Return 1 if the library is linked with raylib and can open a window, else 0.
PUFFER_EXPORT int puffer_can_render(void);

// Draw an environment in its window, on the calling thread. Always call this from the same thread,
// since a window belongs to one. Waits for steps in progress. Return 0, or 1 if the environment
// called exit, as it does when the window is closed or Escape is pressed.
PUFFER_EXPORT int puffer_render(PufferVec* vec, int env);

// Choose every environment's scripted opponent (5.0's puf_set_bot_policy). Waits for steps in
// progress. Return 0, or -1 if the environments have no opponents.
PUFFER_EXPORT int puffer_set_bot_policy(PufferVec* vec, int policy);

// Return the thread-seconds spent in environment steps since creation.
PUFFER_EXPORT double puffer_busy_seconds(PufferVec* vec);

// Wait for steps in progress, join the threads, close the environments and free everything. NULL is
// allowed. Return 0, or PUFFER_UNDER_WAY without closing anything if the steps take longer.
PUFFER_EXPORT int puffer_close(PufferVec* vec, int milliseconds);

// Return the next random number of the generator that environments call as rand_r. Exported for
// tests.
PUFFER_EXPORT int puffer_rand_r(unsigned int* seed);

#endif
