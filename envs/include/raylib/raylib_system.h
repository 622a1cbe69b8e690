// Included by raylib.h: time, random numbers, memory, files and messages, which are real; and what
// must not be zero without a window.

#ifndef PUFFER_RAYLIB_SYSTEM_H
#define PUFFER_RAYLIB_SYSTEM_H

#pragma GCC system_header

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "../../src/host.h"

// ---- A screen that isn't there: nobody divides by its size and gets nowhere ---------------------

static inline int GetScreenWidth(void) { return 1280; }
static inline int GetScreenHeight(void) { return 720; }
static inline int GetRenderWidth(void) { return 1280; }
static inline int GetRenderHeight(void) { return 720; }
static inline int GetMonitorCount(void) { return 1; }
static inline int GetMonitorWidth(int monitor) { return (void)monitor, 1280; }
static inline int GetMonitorHeight(int monitor) { return (void)monitor, 720; }
static inline int GetMonitorRefreshRate(int monitor) { return (void)monitor, 60; }
static inline Vector2 GetWindowScaleDPI(void) { return (Vector2){1.0f, 1.0f}; }
static inline int GetFPS(void) { return 60; }
static inline float GetFrameTime(void) { return 1.0f / 60.0f; }
static inline bool IsKeyUp(int key) { return (void)key, true; }
static inline bool IsMouseButtonUp(int button) { return (void)button, true; }
static inline bool IsGamepadButtonUp(int pad, int button) { return (void)pad, (void)button, true; }

// ---- Time and random numbers --------------------------------------------------------------------

// Seconds, of a clock that only goes forward.
static inline double GetTime(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Nothing waits to be drawn.
static inline void WaitTime(double seconds) { (void)seconds; }

static inline void SetRandomSeed(unsigned int seed) { puffer_srand(seed); }
static inline int GetRandomValue(int min, int max) { return puffer_random_value(min, max); }

// `count` different numbers from min to max, in random order; NULL if there aren't as many.
static inline int* LoadRandomSequence(unsigned int count, int min, int max) {
    const long long low = min < max ? min : max;
    const long long range = (min < max ? (long long)max : (long long)min) - low + 1;
    if (count == 0 || (long long)count > range) {
        return NULL;
    }
    int* chosen = (int*)malloc(count * sizeof(int));
    for (unsigned int i = 0; chosen != NULL && i < count; i++) {
        // Floyd's sampling, and then a place among those there are.
        const int last = (int)(low + range - count + i);
        int value = puffer_random_value((int)low, last);
        for (unsigned int j = 0; j < i; j++) {
            if (chosen[j] == value) {
                value = last;
                break;
            }
        }
        const int at = puffer_random_value(0, (int)i);
        chosen[i] = chosen[at];
        chosen[at] = value;
    }
    return chosen;
}

static inline void UnloadRandomSequence(int* sequence) { free(sequence); }

// ---- Memory and messages ------------------------------------------------------------------------

static inline void* MemAlloc(unsigned int size) { return calloc(size, 1); }
static inline void* MemRealloc(void* memory, unsigned int size) { return realloc(memory, size); }
static inline void MemFree(void* memory) { free(memory); }

// Warnings and worse, on standard error. Nothing exits.
static inline void TraceLog(int level, const char* text, ...) {
    if (level < LOG_WARNING) {
        return;
    }
    va_list arguments;
    va_start(arguments, text);
    vfprintf(stderr, text, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

// ---- Files; relative paths as in src/host.h -----------------------------------------------------

static inline int GetFileLength(const char* fileName) {
    struct stat about;
    return stat(puffer_path(fileName), &about) == 0 ? (int)about.st_size : 0;
}

static inline bool FileExists(const char* fileName) {
    struct stat about;
    return stat(puffer_path(fileName), &about) == 0;
}

static inline bool DirectoryExists(const char* path) {
    struct stat about;
    return stat(puffer_path(path), &about) == 0 && S_ISDIR(about.st_mode);
}

static inline bool IsPathFile(const char* path) {
    struct stat about;
    return stat(puffer_path(path), &about) == 0 && S_ISREG(about.st_mode);
}

// The whole file and a zero behind it, or NULL.
static inline unsigned char* LoadFileData(const char* fileName, int* dataSize) {
    const int size = GetFileLength(fileName);
    FILE* file = puffer_fopen(fileName, "rb");
    unsigned char* data = file == NULL ? NULL : (unsigned char*)calloc((size_t)size + 1, 1);
    *dataSize = data == NULL ? 0 : (int)fread(data, 1, (size_t)size, file);
    if (file != NULL) {
        fclose(file);
    }
    return data;
}

static inline char* LoadFileText(const char* fileName) {
    int size;
    return (char*)LoadFileData(fileName, &size);
}

static inline void UnloadFileData(unsigned char* data) { free(data); }
static inline void UnloadFileText(char* text) { free(text); }

static inline bool SaveFileData(const char* fileName, void* data, int dataSize) {
    FILE* file = puffer_fopen(fileName, "wb");
    if (file == NULL) {
        return false;
    }
    const bool written = fwrite(data, 1, (size_t)dataSize, file) == (size_t)dataSize;
    return fclose(file) == 0 && written;
}

static inline bool SaveFileText(const char* fileName, char* text) {
    return SaveFileData(fileName, text, (int)strlen(text));
}

static inline const char* GetFileName(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

// With its dot; NULL if there is none.
static inline const char* GetFileExtension(const char* path) {
    const char* dot = strrchr(GetFileName(path), '.');
    return dot == GetFileName(path) ? NULL : dot;
}

// Whether the extension is among ".png;.jpg", in any case.
static inline bool IsFileExtension(const char* path, const char* extensions) {
    const char* own = GetFileExtension(path);
    const size_t length = own == NULL ? 0 : strlen(own);
    for (const char* one = extensions; length > 0 && *one != '\0';) {
        const size_t size = strcspn(one, ";");
        size_t same = 0;
        while (same < size && same < length && (own[same] | 32) == (one[same] | 32)) {
            same++;
        }
        if (same == size && same == length) {
            return true;
        }
        one += size + (one[size] == ';');
    }
    return false;
}

#endif
