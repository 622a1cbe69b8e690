// See ending.h.

#include "ending.h"

#include <sched.h>

#include "vec_struct.h"

bool puffer_is_over(PufferVec* self) {
    return atomic_load(&self->ending.over) != PUFFER_GOES_ON;
}

static void note(PufferEnd* ending, const PufferFailure* failure, int first, int end,
                 const char* when) {
    int none = PUFFER_GOES_ON;
    if (!atomic_compare_exchange_strong(&ending->over, &none, PUFFER_NOTED_SOON)) {
        return;
    }
    ending->failure = *failure;
    ending->first = failure->env < 0 ? first : failure->env;
    ending->last = failure->env < 0 ? end - 1 : failure->env;
    ending->when = when;
    atomic_store(&ending->over, PUFFER_ENDED_ITSELF);
}

void puffer_attempt(PufferVec* self, void (*work)(void*), void* context, int first, int end,
                    const char* when) {
    PufferFailure failure;
    if (!puffer_guard(work, context, &failure)) {
        puffer_set_random(NULL);
        note(&self->ending, &failure, first, end, when);
    }
}

static void say_who(unsigned int seed, int first, int last, Text* text) {
    if (first < 0) {
        puffer_say(text, "the environment");
    } else if (first < last) {
        puffer_say(text, "one of environments %d to %d", first, last);
    } else if (puffer_ops.release == 5) {
        puffer_say(text, "environment %d (of seed %u)", first, seed + (unsigned int)first);
    } else {
        puffer_say(text, "environment %d", first);
    }
}

void puffer_say_failure(const PufferFailure* failure, unsigned int seed, int first, int last,
                        const char* when, Text* text) {
    switch (failure->code) {
        case PUFFER_NO_KEY:
            puffer_say(text, "%s", failure->text);
            return;
        case PUFFER_ASSERTED:
            say_who(seed, first, last, text);
            puffer_say(text, " failed an assertion while it was %s: %s\n"
                             "assertions are checked in PufferLib 5.0's environments", when,
                       failure->text);
            return;
        case PUFFER_ABORT:
            say_who(seed, first, last, text);
            puffer_say(text, " called abort() while it was %s\n", when);
            break;
        default:
            say_who(seed, first, last, text);
            puffer_say(text, " called exit(%d) while it was %s\n", failure->code, when);
    }
    puffer_say(text, "what it wrote before that, above, may say why");
}

int puffer_ended(PufferVec* self, char* text_at, size_t text_size) {
    PufferEnd* ending = &self->ending;
    Text text = {text_at, text_size};
    puffer_say(&text, "%s", "");
    while (atomic_load(&ending->over) == PUFFER_NOTED_SOON) {
        sched_yield();
    }
    switch (atomic_load(&ending->over)) {
        case PUFFER_ENDED_ITSELF:
            puffer_say_failure(&ending->failure, self->seed, ending->first, ending->last,
                               ending->when, &text);
            return 1;
        case PUFFER_ABANDONED:
            puffer_say(&text, "a step didn't end, and was abandoned\nmake new environments");
            return 1;
        default:
            return 0;
    }
}

void puffer_abandon(PufferVec* self) {
    int none = PUFFER_GOES_ON;
    atomic_compare_exchange_strong(&self->ending.over, &none, PUFFER_ABANDONED);
}
