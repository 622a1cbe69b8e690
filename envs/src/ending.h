// The end of all stepping before the environments are closed: an environment ended the process, or
// a step that didn't end was abandoned.

#ifndef PUFFER_ENDING_H
#define PUFFER_ENDING_H

#include <stdatomic.h>

#include "text.h"
#include "vec.h"

// Reason why stepping has ended.
typedef enum {
    PUFFER_GOES_ON,
    PUFFER_NOTED_SOON,   // a thread is writing the rest of PufferEnd
    PUFFER_ENDED_ITSELF, // an environment called exit or abort, or failed an assertion
    PUFFER_ABANDONED,    // a step didn't end
} PufferOver;

typedef struct {
    atomic_int over;  // PufferOver
    PufferFailure failure;
    int first;  // the environment is one of first..last
    int last;
    const char* when;  // "stepped", "reset", ...
} PufferEnd;

// Return true if no further step is possible, because an environment ended the process or steps
// were abandoned.
bool puffer_is_over(PufferVec* self);

// Run work(context) for environments first..end-1, and catch a call of exit or abort. The first
// such end is recorded as the reason why stepping is over.
void puffer_attempt(PufferVec* self, void (*work)(void*), void* context, int first, int end,
                    const char* when);

// Write an error message to `text`: how one of the environments first..last failed while it was
// `when` (for example "stepped"), and a hint in a second line.
void puffer_say_failure(const PufferFailure* failure, unsigned int seed, int first, int last,
                        const char* when, Text* text);

#endif
