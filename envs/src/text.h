// Messages for users, cut off at the end of the caller's buffer.

#ifndef PUFFER_TEXT_H
#define PUFFER_TEXT_H

#include <stddef.h>

typedef struct {
    char* at;     // position of the next text
    size_t left;  // bytes from there to the end; may be 0
} Text;

// Append a text, formatted as by printf.
__attribute__((format(printf, 2, 3))) void puffer_say(Text* text, const char* format, ...);

#endif
