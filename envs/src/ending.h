// Environments that are over before they are closed: one ended itself, or nobody waits any more.

#ifndef PUFFER_ENDING_H
#define PUFFER_ENDING_H

#include <stdatomic.h>

#include "text.h"
#include "vec.h"

// Why nothing is stepped any more.
typedef enum {
    PUFFER_GOES_ON,
    PUFFER_NOTED_SOON,   // a thread is writing the rest of PufferEnd
    PUFFER_ENDED_ITSELF, // it called exit or abort, or an assertion failed
    PUFFER_ABANDONED,    // a step didn't end, and nobody waits for it
} PufferOver;

typedef struct {
    atomic_int over;  // PufferOver
    PufferFailure failure;
    int first;  // one of these environments
    int last;
    const char* when;
} PufferEnd;

// Whether steps are to be left out.
bool puffer_is_over(PufferVec* self);

// Run work(context) for environments first..end-1. If one of them ends itself that is noted, unless
// another one did before.
void puffer_attempt(PufferVec* self, void (*work)(void*), void* context, int first, int end,
                    const char* when);

// What an environment of first..last did while it was `when`, the hint in a second line.
void puffer_say_failure(const PufferFailure* failure, unsigned int seed, int first, int last,
                        const char* when, Text* text);

#endif
