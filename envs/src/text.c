// See text.h.

#include "text.h"

#include <stdarg.h>
#include <stdio.h>

void puffer_say(Text* text, const char* format, ...) {
    if (text->left == 0) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    size_t used = length < 0 ? 0 : (size_t)length;
    used = used < text->left ? used : text->left - 1;
    text->at += used;
    text->left -= used;
}
