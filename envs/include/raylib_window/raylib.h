// Wraps the real raylib.h if the library is installed, so that pictures, sounds and models are found
// from any working directory, and each environment has a separate random generator: see src/host.h.
// The stand-in, ../raylib, does the same.

#ifndef PUFFER_RAYLIB_WINDOW_H
#define PUFFER_RAYLIB_WINDOW_H

#pragma GCC system_header

#include_next <raylib.h>

#include "../../src/host.h"

#define GetRandomValue(min, max) puffer_random_value(min, max)
#define SetRandomSeed(seed) puffer_srand(seed)

// A macro's name isn't expanded again inside it, so these call the library's functions.
#define LoadShader(vertex, fragment) LoadShader(puffer_path(vertex), puffer_path(fragment))
#define LoadImage(path) LoadImage(puffer_path(path))
#define LoadImageRaw(path, w, h, format, head) LoadImageRaw(puffer_path(path), w, h, format, head)
#define LoadImageAnim(path, frames) LoadImageAnim(puffer_path(path), frames)
#define LoadTexture(path) LoadTexture(puffer_path(path))
#define LoadFont(path) LoadFont(puffer_path(path))
#define LoadFontEx(path, size, points, count) LoadFontEx(puffer_path(path), size, points, count)
#define LoadModel(path) LoadModel(puffer_path(path))
#define LoadMaterials(path, count) LoadMaterials(puffer_path(path), count)
#define LoadModelAnimations(path, count) LoadModelAnimations(puffer_path(path), count)
#define LoadWave(path) LoadWave(puffer_path(path))
#define LoadSound(path) LoadSound(puffer_path(path))
#define LoadMusicStream(path) LoadMusicStream(puffer_path(path))
#define LoadFileData(path, size) LoadFileData(puffer_path(path), size)
#define LoadFileText(path) LoadFileText(puffer_path(path))
#define FileExists(path) FileExists(puffer_path(path))
#define DirectoryExists(path) DirectoryExists(puffer_path(path))
#define IsPathFile(path) IsPathFile(puffer_path(path))
#define GetFileLength(path) GetFileLength(puffer_path(path))

#endif
