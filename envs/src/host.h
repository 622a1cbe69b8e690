// Replacements for some functions of the C library. Compiler flags select them for environments:
// -Drand=puffer_rand -Dsrand=puffer_srand -Dfopen=puffer_fopen -Dabort=puffer_abort, and
// puffer_exit for exit, _exit and _Exit.

#ifndef PUFFER_HOST_H
#define PUFFER_HOST_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- rand: one generator per environment --------------------------------------------------------
//
// The C library has one generator for all threads, so trajectories would depend on the order of
// steps. While an environment is created, reset or stepped, these functions use the environment's
// generator, seeded with its number plus vec.seed; at other times the thread's generator. raylib's
// random numbers use the same one.

int puffer_rand(void);  // 0 to 2147483647, as glibc's RAND_MAX
void puffer_srand(unsigned int seed);
int puffer_random_value(int min, int max);  // from min to max, inclusive, in either order

// Select the random generator that rand() uses on this thread: that of the environment being run,
// or the thread's if `state` is NULL.
void puffer_set_random(unsigned int* state);

// ---- fopen: find data from any working directory -----------------------------------------------
//
// Upstream runs in its repository's root, so environments name their data relative to it. For
// reading, a relative path is searched in the environment's folder, in the three folders above it,
// and then in the working directory. Files are written to the working directory.

// Return the place of a relative path, or the path itself if it isn't found. The result is valid
// until the fourth call after this one by the same thread.
const char* puffer_path(const char* path);
FILE* puffer_fopen(const char* path, const char* mode);

// ---- exit: return to Python --------------------------------------------------------------------

// Reason why work didn't finish.
typedef struct {
    int code;        // argument of exit, or one of the codes below
    int env;         // number of the environment, -1 if unknown
    char text[400];  // message of puffer_fail, else ""
} PufferFailure;

#define PUFFER_ABORT INT_MIN             // abort was called
#define PUFFER_NO_KEY (INT_MIN + 1)      // a key is missing; `text` is the complete message
#define PUFFER_ASSERTED (INT_MIN + 2)    // an assertion failed; `text` quotes it

// Run work(context) and catch its end: return false, with the reason in `failure`, if it called
// exit, abort or puffer_fail. Its allocations are lost then, and its locks stay locked.
bool puffer_guard(void (*work)(void*), void* context, PufferFailure* failure);

// Return a pointer to where running code records the number of its current environment, for error
// messages.
int* puffer_place(void);

// Install signal handlers that report a crash (SIGSEGV, ...) inside puffer_guard on standard error
// before the process ends.
void puffer_watch_crashes(void);

void puffer_fail(int code, const char* format, ...)
    __attribute__((noreturn, cold, format(printf, 2, 3)));
void puffer_assertion_failed(const char* expression, const char* file, int line)
    __attribute__((noreturn, cold));
void puffer_exit(int code) __attribute__((noreturn));
void puffer_abort(void) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
