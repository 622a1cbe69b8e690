// What an environment gets instead of some functions of the C library. The compiler is told so:
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

// ---- rand: each environment has a generator of its own ------------------------------------------
//
// The C library has one for all threads, so trajectories would depend on who steps first. While an
// environment is created, reset or stepped, these draw from its own, seeded with its number plus
// vec.seed. Elsewhere, from the thread's. raylib's random numbers come from there too.

int puffer_rand(void);  // 0 to 2147483647, as glibc's RAND_MAX
void puffer_srand(unsigned int seed);
int puffer_random_value(int min, int max);  // min to max, both included, in either order

// Whose turn it is on this thread: the generator's state, or NULL.
void puffer_set_random(unsigned int* state);

// ---- fopen: data is found from anywhere ---------------------------------------------------------
//
// Upstream runs in its repository's root, so environments name their data from there. A relative
// path that is read is looked for in the environment's folder, in the three above it, and at last
// in the working directory. What is written goes to the working directory.

// Where a relative path is; the path itself if it is nowhere. Good until this thread's fourth call
// from now.
const char* puffer_path(const char* path);
FILE* puffer_fopen(const char* path, const char* mode);

// ---- exit: an environment that gives up doesn't take Python with it -----------------------------

// Why work didn't finish.
typedef struct {
    int code;        // of exit, or one of those below
    int env;         // the environment it was in, -1 if that isn't known
    char text[400];  // what puffer_fail was given, else ""
} PufferFailure;

#define PUFFER_ABORT INT_MIN             // abort was called
#define PUFFER_NO_KEY (INT_MIN + 1)      // a key is missing: `text` is all there is to say
#define PUFFER_ASSERTED (INT_MIN + 2)    // an assertion failed: `text` says which

// Run work(context); false if it called exit, abort or puffer_fail, which `failure` then says. What
// it had allocated is lost then, and what it locked stays locked.
bool puffer_guard(void (*work)(void*), void* context, PufferFailure* failure);

// Where work notes which environment it is in.
int* puffer_place(void);

// Have the process say, before it ends by SIGSEGV or the like, that it was in such work.
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
