// Included by raylib.h: points of splines, and between the world and the screen in two dimensions.

#ifndef PUFFER_RAYLIB_GEOMETRY_H
#define PUFFER_RAYLIB_GEOMETRY_H

#pragma GCC system_header

#include <math.h>

// a p1 + b p2 + c p3 + d p4
static inline Vector2 puffer_mix(Vector2 p1, float a, Vector2 p2, float b, Vector2 p3, float c,
                                 Vector2 p4, float d) {
    return (Vector2){a * p1.x + b * p2.x + c * p3.x + d * p4.x,
                     a * p1.y + b * p2.y + c * p3.y + d * p4.y};
}

static inline Vector2 GetSplinePointLinear(Vector2 a, Vector2 b, float t) {
    return puffer_mix(a, 1.0f - t, b, t, a, 0.0f, b, 0.0f);
}

// Uniform cubic B-spline.
static inline Vector2 GetSplinePointBasis(Vector2 p1, Vector2 p2, Vector2 p3, Vector2 p4, float t) {
    const float s = 1.0f - t;
    return puffer_mix(p1, s * s * s / 6.0f, p2, (3.0f * t * t * t - 6.0f * t * t + 4.0f) / 6.0f, p3,
                      (3.0f * s * s * s - 6.0f * s * s + 4.0f) / 6.0f, p4, t * t * t / 6.0f);
}

// Catmull and Rom's cubic through p2 and p3.
static inline Vector2 GetSplinePointCatmullRom(Vector2 p1, Vector2 p2, Vector2 p3, Vector2 p4,
                                               float t) {
    const float s = 1.0f - t;
    return puffer_mix(p1, -0.5f * t * s * s, p2, 0.5f * (3.0f * t * t * t - 5.0f * t * t + 2.0f),
                      p3, 0.5f * (3.0f * s * s * s - 5.0f * s * s + 2.0f), p4, -0.5f * s * t * t);
}

static inline Vector2 GetSplinePointBezierQuad(Vector2 p1, Vector2 c2, Vector2 p3, float t) {
    const float s = 1.0f - t;
    return puffer_mix(p1, s * s, c2, 2.0f * s * t, p3, t * t, p3, 0.0f);
}

static inline Vector2 GetSplinePointBezierCubic(Vector2 p1, Vector2 c2, Vector2 c3, Vector2 p4,
                                                float t) {
    const float s = 1.0f - t;
    return puffer_mix(p1, s * s * s, c2, 3.0f * s * s * t, c3, 3.0f * s * t * t, p4, t * t * t);
}

// The target moves to the origin, the world is turned and zoomed, and the origin to the offset.
static inline Vector2 GetWorldToScreen2D(Vector2 position, Camera2D camera) {
    const float angle = camera.rotation * DEG2RAD;
    const float c = camera.zoom * cosf(angle), s = camera.zoom * sinf(angle);
    const float x = position.x - camera.target.x, y = position.y - camera.target.y;
    return (Vector2){c * x - s * y + camera.offset.x, s * x + c * y + camera.offset.y};
}

static inline Vector2 GetScreenToWorld2D(Vector2 position, Camera2D camera) {
    const float angle = camera.rotation * DEG2RAD;
    const float c = cosf(angle) / camera.zoom, s = sinf(angle) / camera.zoom;
    const float x = position.x - camera.offset.x, y = position.y - camera.offset.y;
    return (Vector2){c * x + s * y + camera.target.x, c * y - s * x + camera.target.y};
}

static inline Matrix GetCameraMatrix2D(Camera2D camera) {
    const float angle = camera.rotation * DEG2RAD;
    const float c = camera.zoom * cosf(angle), s = camera.zoom * sinf(angle);
    const Vector2 origin = GetWorldToScreen2D((Vector2){0.0f, 0.0f}, camera);
    Matrix result = {0};
    result.m0 = c;
    result.m4 = -s;
    result.m1 = s;
    result.m5 = c;
    result.m10 = 1.0f;
    result.m12 = origin.x;
    result.m13 = origin.y;
    result.m15 = 1.0f;
    return result;
}

#endif
