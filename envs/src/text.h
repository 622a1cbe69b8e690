// Messages for people, cut off where the caller's buffer ends.

#ifndef PUFFER_TEXT_H
#define PUFFER_TEXT_H

#include <stddef.h>

typedef struct {
    char* at;     // where the next word goes
    size_t left;  // bytes from there on; 0 is fine
} Text;

// Append, as printf would.
__attribute__((format(printf, 2, 3))) void puffer_say(Text* text, const char* format, ...);

#endif
