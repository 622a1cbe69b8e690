// Included by raylib.h: text that is made and compared, not drawn.

#ifndef PUFFER_RAYLIB_TEXT_H
#define PUFFER_RAYLIB_TEXT_H

#pragma GCC system_header

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// As printf. The result is good until this thread's eighth call from now, and at most 1023 long.
static inline const char* TextFormat(const char* text, ...) {
    static _Thread_local char room[8][1024];
    static _Thread_local unsigned int turn = 0;
    char* to = room[turn++ % 8];
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(to, sizeof(room[0]), text, arguments);
    va_end(arguments);
    return to;
}

static inline unsigned int TextLength(const char* text) {
    return text == NULL ? 0 : (unsigned int)strlen(text);
}

static inline int TextCopy(char* to, const char* text) {
    const int length = text == NULL || to == NULL ? 0 : (int)strlen(text);
    if (length > 0 || (text != NULL && to != NULL)) {
        memcpy(to, text, (size_t)length + 1);
    }
    return length;
}

static inline bool TextIsEqual(const char* one, const char* other) {
    return one != NULL && other != NULL && strcmp(one, other) == 0;
}

static inline const char* TextSubtext(const char* text, int position, int length) {
    const int size = (int)TextLength(text);
    const int from = position < 0 ? 0 : position > size ? size : position;
    const int most = length < 0 ? 0 : length;
    return TextFormat("%.*s", most > size - from ? size - from : most, text + from);
}

static inline void TextAppend(char* text, const char* append, int* position) {
    *position += TextCopy(text + *position, append);
}

static inline int TextFindIndex(const char* text, const char* find) {
    const char* found = strstr(text, find);
    return found == NULL ? -1 : (int)(found - text);
}

static inline int TextToInteger(const char* text) { return (int)strtol(text, NULL, 10); }
static inline float TextToFloat(const char* text) { return strtof(text, NULL); }

// Letters half as wide as high: something to lay a picture out with.
static inline int MeasureText(const char* text, int fontSize) {
    return (int)TextLength(text) * fontSize / 2;
}

static inline Vector2 MeasureTextEx(Font font, const char* text, float fontSize, float spacing) {
    (void)font;
    return (Vector2){(float)TextLength(text) * (fontSize / 2.0f + spacing), fontSize};
}

// The first character of UTF-8 text, and its bytes; '?' for what is none.
static inline int GetCodepoint(const char* text, int* codepointSize) {
    const unsigned char* at = (const unsigned char*)text;
    const int more = at[0] >= 0xF0 ? 3 : at[0] >= 0xE0 ? 2 : at[0] >= 0xC0 ? 1 : 0;
    int code = more == 0 ? at[0] : at[0] & (0x3F >> more);
    *codepointSize = 1;
    for (int i = 1; i <= more; i++) {
        if ((at[i] & 0xC0) != 0x80) {
            return '?';
        }
        code = code << 6 | (at[i] & 0x3F);
    }
    *codepointSize = 1 + more;
    return more == 0 && at[0] >= 0x80 ? '?' : code;
}

static inline int GetCodepointNext(const char* text, int* codepointSize) {
    return GetCodepoint(text, codepointSize);
}

#endif
