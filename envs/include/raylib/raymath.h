// A stand-in for raymath.h of raylib 5.5: vectors here, matrices and quaternions in
// raymath_matrix.h. Everything computes, in floats; the formulas are the textbook's.

#ifndef RAYMATH_H
#define RAYMATH_H

#pragma GCC system_header

#include <math.h>

#include "raylib_types.h"

#ifndef EPSILON
#define EPSILON 0.000001f
#endif

#define RMAPI static inline

typedef struct float3 {
    float v[3];
} float3;

typedef struct float16 {
    float v[16];
} float16;

// ---- Numbers ------------------------------------------------------------------------------------

RMAPI float Clamp(float value, float min, float max) {
    const float above = value < min ? min : value;
    return above > max ? max : above;
}

RMAPI float Lerp(float start, float end, float amount) { return start + amount * (end - start); }

RMAPI float Normalize(float value, float start, float end) {
    return (value - start) / (end - start);
}

RMAPI float Remap(float value, float inStart, float inEnd, float outStart, float outEnd) {
    return (value - inStart) / (inEnd - inStart) * (outEnd - outStart) + outStart;
}

RMAPI float Wrap(float value, float min, float max) {
    return value - (max - min) * floorf((value - min) / (max - min));
}

// Equal up to a millionth of the larger, or of 1.
RMAPI int FloatEquals(float x, float y) {
    return fabsf(x - y) <= EPSILON * fmaxf(1.0f, fmaxf(fabsf(x), fabsf(y)));
}

// ---- Two dimensions -----------------------------------------------------------------------------

RMAPI Vector2 Vector2Zero(void) { return (Vector2){0.0f, 0.0f}; }
RMAPI Vector2 Vector2One(void) { return (Vector2){1.0f, 1.0f}; }
RMAPI Vector2 Vector2Add(Vector2 a, Vector2 b) { return (Vector2){a.x + b.x, a.y + b.y}; }
RMAPI Vector2 Vector2AddValue(Vector2 v, float add) { return (Vector2){v.x + add, v.y + add}; }
RMAPI Vector2 Vector2Subtract(Vector2 a, Vector2 b) { return (Vector2){a.x - b.x, a.y - b.y}; }
RMAPI Vector2 Vector2SubtractValue(Vector2 v, float sub) { return (Vector2){v.x - sub, v.y - sub}; }
RMAPI Vector2 Vector2Scale(Vector2 v, float scale) { return (Vector2){v.x * scale, v.y * scale}; }
RMAPI Vector2 Vector2Multiply(Vector2 a, Vector2 b) { return (Vector2){a.x * b.x, a.y * b.y}; }
RMAPI Vector2 Vector2Divide(Vector2 a, Vector2 b) { return (Vector2){a.x / b.x, a.y / b.y}; }
RMAPI Vector2 Vector2Negate(Vector2 v) { return (Vector2){-v.x, -v.y}; }
RMAPI Vector2 Vector2Invert(Vector2 v) { return (Vector2){1.0f / v.x, 1.0f / v.y}; }
RMAPI float Vector2DotProduct(Vector2 a, Vector2 b) { return a.x * b.x + a.y * b.y; }
RMAPI float Vector2LengthSqr(Vector2 v) { return v.x * v.x + v.y * v.y; }
RMAPI float Vector2Length(Vector2 v) { return sqrtf(Vector2LengthSqr(v)); }

RMAPI float Vector2DistanceSqr(Vector2 a, Vector2 b) {
    return Vector2LengthSqr(Vector2Subtract(a, b));
}

RMAPI float Vector2Distance(Vector2 a, Vector2 b) { return sqrtf(Vector2DistanceSqr(a, b)); }

// From a to b, in radians, from -pi to pi.
RMAPI float Vector2Angle(Vector2 a, Vector2 b) {
    return atan2f(a.x * b.y - a.y * b.x, Vector2DotProduct(a, b));
}

// Of the line from start to end, y pointing up on a screen whose y points down.
RMAPI float Vector2LineAngle(Vector2 start, Vector2 end) {
    return -atan2f(end.y - start.y, end.x - start.x);
}

// Zero stays zero.
RMAPI Vector2 Vector2Normalize(Vector2 v) {
    const float length = Vector2Length(v);
    return length > 0.0f ? Vector2Scale(v, 1.0f / length) : Vector2Zero();
}

RMAPI Vector2 Vector2Transform(Vector2 v, Matrix m) {
    return (Vector2){m.m0 * v.x + m.m4 * v.y + m.m12, m.m1 * v.x + m.m5 * v.y + m.m13};
}

RMAPI Vector2 Vector2Lerp(Vector2 a, Vector2 b, float amount) {
    return (Vector2){Lerp(a.x, b.x, amount), Lerp(a.y, b.y, amount)};
}

RMAPI Vector2 Vector2Reflect(Vector2 v, Vector2 normal) {
    return Vector2Subtract(v, Vector2Scale(normal, 2.0f * Vector2DotProduct(v, normal)));
}

RMAPI Vector2 Vector2Min(Vector2 a, Vector2 b) {
    return (Vector2){fminf(a.x, b.x), fminf(a.y, b.y)};
}

RMAPI Vector2 Vector2Max(Vector2 a, Vector2 b) {
    return (Vector2){fmaxf(a.x, b.x), fmaxf(a.y, b.y)};
}

RMAPI Vector2 Vector2Rotate(Vector2 v, float angle) {
    const float c = cosf(angle), s = sinf(angle);
    return (Vector2){c * v.x - s * v.y, s * v.x + c * v.y};
}

RMAPI Vector2 Vector2MoveTowards(Vector2 v, Vector2 target, float maxDistance) {
    const float distance = Vector2Distance(v, target);
    if (distance == 0.0f || (maxDistance >= 0.0f && distance <= maxDistance)) {
        return target;
    }
    return Vector2Lerp(v, target, maxDistance / distance);
}

RMAPI Vector2 Vector2Clamp(Vector2 v, Vector2 min, Vector2 max) {
    return Vector2Min(max, Vector2Max(min, v));
}

// The same direction, with a length from min to max; zero stays zero.
RMAPI Vector2 Vector2ClampValue(Vector2 v, float min, float max) {
    const float length = Vector2Length(v);
    return length > 0.0f ? Vector2Scale(v, Clamp(length, min, max) / length) : v;
}

RMAPI int Vector2Equals(Vector2 a, Vector2 b) {
    return FloatEquals(a.x, b.x) && FloatEquals(a.y, b.y);
}

// Snell's law for a unit direction v, a unit normal n against it, and a ratio r of indices; zero
// for total reflection.
RMAPI Vector2 Vector2Refract(Vector2 v, Vector2 n, float r) {
    const float cosine = Vector2DotProduct(v, n);
    const float square = 1.0f - r * r * (1.0f - cosine * cosine);
    if (square < 0.0f) {
        return Vector2Zero();
    }
    return Vector2Subtract(Vector2Scale(v, r), Vector2Scale(n, r * cosine + sqrtf(square)));
}

// ---- Three dimensions ---------------------------------------------------------------------------

RMAPI Vector3 Vector3Zero(void) { return (Vector3){0.0f, 0.0f, 0.0f}; }
RMAPI Vector3 Vector3One(void) { return (Vector3){1.0f, 1.0f, 1.0f}; }

RMAPI Vector3 Vector3Add(Vector3 a, Vector3 b) {
    return (Vector3){a.x + b.x, a.y + b.y, a.z + b.z};
}

RMAPI Vector3 Vector3AddValue(Vector3 v, float add) {
    return (Vector3){v.x + add, v.y + add, v.z + add};
}

RMAPI Vector3 Vector3Subtract(Vector3 a, Vector3 b) {
    return (Vector3){a.x - b.x, a.y - b.y, a.z - b.z};
}

RMAPI Vector3 Vector3SubtractValue(Vector3 v, float sub) { return Vector3AddValue(v, -sub); }

RMAPI Vector3 Vector3Scale(Vector3 v, float scale) {
    return (Vector3){v.x * scale, v.y * scale, v.z * scale};
}

RMAPI Vector3 Vector3Multiply(Vector3 a, Vector3 b) {
    return (Vector3){a.x * b.x, a.y * b.y, a.z * b.z};
}

RMAPI Vector3 Vector3Divide(Vector3 a, Vector3 b) {
    return (Vector3){a.x / b.x, a.y / b.y, a.z / b.z};
}

RMAPI Vector3 Vector3Negate(Vector3 v) { return (Vector3){-v.x, -v.y, -v.z}; }
RMAPI Vector3 Vector3Invert(Vector3 v) { return Vector3Divide(Vector3One(), v); }

RMAPI Vector3 Vector3CrossProduct(Vector3 a, Vector3 b) {
    return (Vector3){a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

RMAPI float Vector3DotProduct(Vector3 a, Vector3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
RMAPI float Vector3LengthSqr(const Vector3 v) { return Vector3DotProduct(v, v); }
RMAPI float Vector3Length(const Vector3 v) { return sqrtf(Vector3LengthSqr(v)); }

RMAPI float Vector3DistanceSqr(Vector3 a, Vector3 b) {
    return Vector3LengthSqr(Vector3Subtract(a, b));
}

RMAPI float Vector3Distance(Vector3 a, Vector3 b) { return sqrtf(Vector3DistanceSqr(a, b)); }

// Between them, in radians, from 0 to pi.
RMAPI float Vector3Angle(Vector3 a, Vector3 b) {
    return atan2f(Vector3Length(Vector3CrossProduct(a, b)), Vector3DotProduct(a, b));
}

RMAPI Vector3 Vector3Normalize(Vector3 v) {
    const float length = Vector3Length(v);
    return length != 0.0f ? Vector3Scale(v, 1.0f / length) : v;
}

// Some vector at right angles: across the axis that v is farthest from.
RMAPI Vector3 Vector3Perpendicular(Vector3 v) {
    const float x = fabsf(v.x), y = fabsf(v.y), z = fabsf(v.z);
    Vector3 axis = {1.0f, 0.0f, 0.0f};
    if (y < x) {
        axis = (Vector3){0.0f, 1.0f, 0.0f};
    }
    if (z < fminf(x, y)) {
        axis = (Vector3){0.0f, 0.0f, 1.0f};
    }
    return Vector3CrossProduct(v, axis);
}

// The part of a along b, and the rest of it.
RMAPI Vector3 Vector3Project(Vector3 a, Vector3 b) {
    return Vector3Scale(b, Vector3DotProduct(a, b) / Vector3LengthSqr(b));
}

RMAPI Vector3 Vector3Reject(Vector3 a, Vector3 b) {
    return Vector3Subtract(a, Vector3Project(a, b));
}

// Gram and Schmidt: *a keeps its direction, *b stays in their plane.
RMAPI void Vector3OrthoNormalize(Vector3* a, Vector3* b) {
    *a = Vector3Normalize(*a);
    *b = Vector3CrossProduct(Vector3Normalize(Vector3CrossProduct(*a, *b)), *a);
}

RMAPI Vector3 Vector3Transform(Vector3 v, Matrix m) {
    return (Vector3){m.m0 * v.x + m.m4 * v.y + m.m8 * v.z + m.m12,
                     m.m1 * v.x + m.m5 * v.y + m.m9 * v.z + m.m13,
                     m.m2 * v.x + m.m6 * v.y + m.m10 * v.z + m.m14};
}

// v + 2 w (u x v) + 2 u x (u x v), for a unit quaternion of vector u and scalar w.
RMAPI Vector3 Vector3RotateByQuaternion(Vector3 v, Quaternion q) {
    const Vector3 u = {q.x, q.y, q.z};
    const Vector3 across = Vector3CrossProduct(u, v);
    const Vector3 twice = Vector3Add(Vector3Scale(across, q.w), Vector3CrossProduct(u, across));
    return Vector3Add(v, Vector3Scale(twice, 2.0f));
}

// Counterclockwise around the axis, seen from its tip; in radians.
RMAPI Vector3 Vector3RotateByAxisAngle(Vector3 v, Vector3 axis, float angle) {
    const Vector3 u = Vector3Scale(Vector3Normalize(axis), sinf(angle / 2.0f));
    return Vector3RotateByQuaternion(v, (Quaternion){u.x, u.y, u.z, cosf(angle / 2.0f)});
}

RMAPI Vector3 Vector3Lerp(Vector3 a, Vector3 b, float amount) {
    return (Vector3){Lerp(a.x, b.x, amount), Lerp(a.y, b.y, amount), Lerp(a.z, b.z, amount)};
}

RMAPI Vector3 Vector3MoveTowards(Vector3 v, Vector3 target, float maxDistance) {
    const float distance = Vector3Distance(v, target);
    if (distance == 0.0f || (maxDistance >= 0.0f && distance <= maxDistance)) {
        return target;
    }
    return Vector3Lerp(v, target, maxDistance / distance);
}

// Hermite's cubic from a to b, with the slopes at both.
RMAPI Vector3 Vector3CubicHermite(Vector3 a, Vector3 slope1, Vector3 b, Vector3 slope2, float t) {
    const float t2 = t * t, t3 = t * t * t;
    const Vector3 left = Vector3Add(Vector3Scale(a, 2.0f * t3 - 3.0f * t2 + 1.0f),
                                    Vector3Scale(slope1, t3 - 2.0f * t2 + t));
    const Vector3 right =
        Vector3Add(Vector3Scale(b, 3.0f * t2 - 2.0f * t3), Vector3Scale(slope2, t3 - t2));
    return Vector3Add(left, right);
}

RMAPI Vector3 Vector3Reflect(Vector3 v, Vector3 normal) {
    return Vector3Subtract(v, Vector3Scale(normal, 2.0f * Vector3DotProduct(v, normal)));
}

RMAPI Vector3 Vector3Min(Vector3 a, Vector3 b) {
    return (Vector3){fminf(a.x, b.x), fminf(a.y, b.y), fminf(a.z, b.z)};
}

RMAPI Vector3 Vector3Max(Vector3 a, Vector3 b) {
    return (Vector3){fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z)};
}

// The weights of a, b and c that make p, a point of their plane: Cramer's rule.
RMAPI Vector3 Vector3Barycenter(Vector3 p, Vector3 a, Vector3 b, Vector3 c) {
    const Vector3 one = Vector3Subtract(b, a), two = Vector3Subtract(c, a);
    const Vector3 to = Vector3Subtract(p, a);
    const float d11 = Vector3LengthSqr(one), d12 = Vector3DotProduct(one, two);
    const float d22 = Vector3LengthSqr(two);
    const float t1 = Vector3DotProduct(to, one), t2 = Vector3DotProduct(to, two);
    const float area = d11 * d22 - d12 * d12;
    const float v = (d22 * t1 - d12 * t2) / area, w = (d11 * t2 - d12 * t1) / area;
    return (Vector3){1.0f - v - w, v, w};
}

RMAPI float3 Vector3ToFloatV(Vector3 v) { return (float3){{v.x, v.y, v.z}}; }

RMAPI Vector3 Vector3Clamp(Vector3 v, Vector3 min, Vector3 max) {
    return Vector3Min(max, Vector3Max(min, v));
}

RMAPI Vector3 Vector3ClampValue(Vector3 v, float min, float max) {
    const float length = Vector3Length(v);
    return length > 0.0f ? Vector3Scale(v, Clamp(length, min, max) / length) : v;
}

RMAPI int Vector3Equals(Vector3 a, Vector3 b) {
    return FloatEquals(a.x, b.x) && FloatEquals(a.y, b.y) && FloatEquals(a.z, b.z);
}

RMAPI Vector3 Vector3Refract(Vector3 v, Vector3 n, float r) {
    const float cosine = Vector3DotProduct(v, n);
    const float square = 1.0f - r * r * (1.0f - cosine * cosine);
    if (square < 0.0f) {
        return Vector3Zero();
    }
    return Vector3Subtract(Vector3Scale(v, r), Vector3Scale(n, r * cosine + sqrtf(square)));
}

#include "raymath_matrix.h"

#endif
