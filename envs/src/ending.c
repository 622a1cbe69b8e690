// See ending.h.

#include "ending.h"

#include "text.h"
#include "vec_struct.h"

bool puffer_is_over(PufferVec* self) {
    return atomic_load(&self->ending.over) != PUFFER_GOES_ON;
}

static void note(PufferEnd* ending, int code, int first, int end, const char* when) {
    int none = PUFFER_GOES_ON;
    if (!atomic_compare_exchange_strong(&ending->over, &none, PUFFER_NOTED_SOON)) {
        return;
    }
    ending->code = code;
    ending->first = first;
    ending->last = end - 1;
    ending->when = when;
    atomic_store(&ending->over, PUFFER_ENDED_ITSELF);
}

void puffer_attempt(PufferVec* self, void (*work)(void*), void* context, int first, int end,
                    const char* when) {
    int code;
    if (!puffer_guard(work, context, &code)) {
        puffer_set_random(NULL);
        note(&self->ending, code, first, end, when);
    }
}

void puffer_name_end(int code, char* to, size_t size) {
    if (code == PUFFER_ABORT) {
        snprintf(to, size, "abort()");
    } else {
        snprintf(to, size, "exit(%d)", code);
    }
}

int puffer_ended(PufferVec* self, char* text_at, size_t text_size) {
    PufferEnd* ending = &self->ending;
    Text text = {text_at, text_size};
    char name[32];
    puffer_say(&text, "%s", "");
    switch (atomic_load(&ending->over)) {
        case PUFFER_ENDED_ITSELF:
            puffer_name_end(ending->code, name, sizeof(name));
            if (ending->first == ending->last) {
                puffer_say(&text, "environment %d", ending->first);
            } else {
                puffer_say(&text, "one of environments %d to %d", ending->first, ending->last);
            }
            puffer_say(&text, " called %s while it was %s\n"
                              "what it wrote before that, above, may say why", name, ending->when);
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
