// A stand-in for raylib 5.5 (www.raylib.com), for machines without it: environments include it to
// draw themselves, and step just as well where nothing can be drawn. On the include path only if
// the library isn't installed.
//
// The names, types and constants are raylib's public interface; there is nothing of the library in
// here. What an environment may use to step computes: vectors and matrices (raymath.h), collisions,
// splines, two-dimensional cameras, colours, random numbers, time, memory, text and files. All that
// draws, plays, loads pictures or asks for keys does nothing and returns zeros: no key is down, no
// window is open or should close, and a texture or model has no parts.
//
// GetRandomValue and SetRandomSeed are each environment's own generator, see src/host.h.

#ifndef RAYLIB_H
#define RAYLIB_H

#pragma GCC system_header

#include <stdarg.h>
#include <stddef.h>

#include "raylib_enums.h"
#include "raylib_types.h"

#define RAYLIB_VERSION_MAJOR 5
#define RAYLIB_VERSION_MINOR 5
#define RAYLIB_VERSION_PATCH 0
#define RAYLIB_VERSION "5.5"

#define PUFFER_NO_WINDOW 1  // this is the stand-in

#define RLAPI static inline

#ifndef RL_MALLOC
#define RL_MALLOC(size) malloc(size)
#define RL_CALLOC(count, size) calloc(count, size)
#define RL_REALLOC(memory, size) realloc(memory, size)
#define RL_FREE(memory) free(memory)
#endif

#define CLITERAL(type) (type)

#define LIGHTGRAY CLITERAL(Color){200, 200, 200, 255}
#define GRAY CLITERAL(Color){130, 130, 130, 255}
#define DARKGRAY CLITERAL(Color){80, 80, 80, 255}
#define YELLOW CLITERAL(Color){253, 249, 0, 255}
#define GOLD CLITERAL(Color){255, 203, 0, 255}
#define ORANGE CLITERAL(Color){255, 161, 0, 255}
#define PINK CLITERAL(Color){255, 109, 194, 255}
#define RED CLITERAL(Color){230, 41, 55, 255}
#define MAROON CLITERAL(Color){190, 33, 55, 255}
#define GREEN CLITERAL(Color){0, 228, 48, 255}
#define LIME CLITERAL(Color){0, 158, 47, 255}
#define DARKGREEN CLITERAL(Color){0, 117, 44, 255}
#define SKYBLUE CLITERAL(Color){102, 191, 255, 255}
#define BLUE CLITERAL(Color){0, 121, 241, 255}
#define DARKBLUE CLITERAL(Color){0, 82, 172, 255}
#define PURPLE CLITERAL(Color){200, 122, 255, 255}
#define VIOLET CLITERAL(Color){135, 60, 190, 255}
#define DARKPURPLE CLITERAL(Color){112, 31, 126, 255}
#define BEIGE CLITERAL(Color){211, 176, 131, 255}
#define BROWN CLITERAL(Color){127, 106, 79, 255}
#define DARKBROWN CLITERAL(Color){76, 63, 47, 255}
#define WHITE CLITERAL(Color){255, 255, 255, 255}
#define BLACK CLITERAL(Color){0, 0, 0, 255}
#define BLANK CLITERAL(Color){0, 0, 0, 0}
#define MAGENTA CLITERAL(Color){255, 0, 255, 255}
#define RAYWHITE CLITERAL(Color){245, 245, 245, 255}

#define GetMouseRay GetScreenToWorldRay

typedef void (*TraceLogCallback)(int logLevel, const char* text, va_list args);

// Functions that do nothing, that return zeros, that return zeros and how many, and no text.
#define PUFFER_VOID(name, ...) \
    static inline void name(__VA_ARGS__) {}
#define PUFFER_ZERO(type, name, ...)        \
    static inline type name(__VA_ARGS__) {  \
        return (type){0};                   \
    }
#define PUFFER_NONE(type, name, count, ...) \
    static inline type name(__VA_ARGS__) {   \
        *count = 0;                          \
        return (type){0};                    \
    }
#define PUFFER_TEXT(name, ...)                     \
    static inline const char* name(__VA_ARGS__) {  \
        return "";                                 \
    }

#include "raylib_colors.h"
#include "raylib_collisions.h"
#include "raylib_draw.h"
#include "raylib_geometry.h"
#include "raylib_media.h"
#include "raylib_system.h"
#include "raylib_text.h"
#include "raylib_window.h"

#undef PUFFER_VOID
#undef PUFFER_ZERO
#undef PUFFER_NONE
#undef PUFFER_TEXT

#endif
