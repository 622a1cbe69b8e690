// Included by raymath.h: four dimensions, matrices and quaternions.
//
// A matrix acts on columns: (x, y, z, 1) becomes m0 x + m4 y + m8 z + m12 and so on. What
// MatrixMultiply(left, right) does is left first, then right. Angles are radians, and positive ones
// counterclockwise around the axis, seen from its tip.

#ifndef PUFFER_RAYMATH_MATRIX_H
#define PUFFER_RAYMATH_MATRIX_H

#pragma GCC system_header

// ---- Four dimensions ----------------------------------------------------------------------------

RMAPI Vector4 Vector4Zero(void) { return (Vector4){0.0f, 0.0f, 0.0f, 0.0f}; }
RMAPI Vector4 Vector4One(void) { return (Vector4){1.0f, 1.0f, 1.0f, 1.0f}; }

RMAPI Vector4 Vector4Add(Vector4 a, Vector4 b) {
    return (Vector4){a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

RMAPI Vector4 Vector4AddValue(Vector4 v, float add) {
    return (Vector4){v.x + add, v.y + add, v.z + add, v.w + add};
}

RMAPI Vector4 Vector4Subtract(Vector4 a, Vector4 b) {
    return (Vector4){a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w};
}

RMAPI Vector4 Vector4SubtractValue(Vector4 v, float sub) { return Vector4AddValue(v, -sub); }

RMAPI Vector4 Vector4Scale(Vector4 v, float scale) {
    return (Vector4){v.x * scale, v.y * scale, v.z * scale, v.w * scale};
}

RMAPI Vector4 Vector4Multiply(Vector4 a, Vector4 b) {
    return (Vector4){a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

RMAPI Vector4 Vector4Divide(Vector4 a, Vector4 b) {
    return (Vector4){a.x / b.x, a.y / b.y, a.z / b.z, a.w / b.w};
}

RMAPI Vector4 Vector4Negate(Vector4 v) { return (Vector4){-v.x, -v.y, -v.z, -v.w}; }
RMAPI Vector4 Vector4Invert(Vector4 v) { return Vector4Divide(Vector4One(), v); }

RMAPI float Vector4DotProduct(Vector4 a, Vector4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

RMAPI float Vector4LengthSqr(Vector4 v) { return Vector4DotProduct(v, v); }
RMAPI float Vector4Length(Vector4 v) { return sqrtf(Vector4LengthSqr(v)); }

RMAPI float Vector4DistanceSqr(Vector4 a, Vector4 b) {
    return Vector4LengthSqr(Vector4Subtract(a, b));
}

RMAPI float Vector4Distance(Vector4 a, Vector4 b) { return sqrtf(Vector4DistanceSqr(a, b)); }

RMAPI Vector4 Vector4Normalize(Vector4 v) {
    const float length = Vector4Length(v);
    return length > 0.0f ? Vector4Scale(v, 1.0f / length) : Vector4Zero();
}

RMAPI Vector4 Vector4Min(Vector4 a, Vector4 b) {
    return (Vector4){fminf(a.x, b.x), fminf(a.y, b.y), fminf(a.z, b.z), fminf(a.w, b.w)};
}

RMAPI Vector4 Vector4Max(Vector4 a, Vector4 b) {
    return (Vector4){fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w)};
}

RMAPI Vector4 Vector4Lerp(Vector4 a, Vector4 b, float amount) {
    return Vector4Add(a, Vector4Scale(Vector4Subtract(b, a), amount));
}

RMAPI Vector4 Vector4MoveTowards(Vector4 v, Vector4 target, float maxDistance) {
    const float distance = Vector4Distance(v, target);
    if (distance == 0.0f || (maxDistance >= 0.0f && distance <= maxDistance)) {
        return target;
    }
    return Vector4Lerp(v, target, maxDistance / distance);
}

RMAPI int Vector4Equals(Vector4 a, Vector4 b) {
    return FloatEquals(a.x, b.x) && FloatEquals(a.y, b.y) && FloatEquals(a.z, b.z) &&
           FloatEquals(a.w, b.w);
}

// ---- Matrices -----------------------------------------------------------------------------------

// Element mI at v[I]: v[row + 4 * column].
RMAPI float16 MatrixToFloatV(Matrix m) {
    return (float16){{m.m0, m.m1, m.m2, m.m3, m.m4, m.m5, m.m6, m.m7, m.m8, m.m9, m.m10, m.m11,
                      m.m12, m.m13, m.m14, m.m15}};
}

RMAPI Matrix puffer_matrix(const float* v) {
    return (Matrix){v[0], v[4], v[8],  v[12], v[1], v[5], v[9],  v[13],
                    v[2], v[6], v[10], v[14], v[3], v[7], v[11], v[15]};
}

// From the rows of its upper left 3 x 3.
RMAPI Matrix puffer_rotation(Vector3 first, Vector3 second, Vector3 third) {
    return (Matrix){first.x, first.y, first.z, 0.0f, second.x, second.y, second.z, 0.0f,
                    third.x, third.y, third.z, 0.0f, 0.0f,     0.0f,     0.0f,     1.0f};
}

RMAPI Matrix MatrixScale(float x, float y, float z) {
    return puffer_rotation((Vector3){x, 0.0f, 0.0f}, (Vector3){0.0f, y, 0.0f},
                           (Vector3){0.0f, 0.0f, z});
}

RMAPI Matrix MatrixIdentity(void) { return MatrixScale(1.0f, 1.0f, 1.0f); }

RMAPI Matrix MatrixTranslate(float x, float y, float z) {
    Matrix result = MatrixIdentity();
    result.m12 = x;
    result.m13 = y;
    result.m14 = z;
    return result;
}

RMAPI float MatrixTrace(Matrix m) { return m.m0 + m.m5 + m.m10 + m.m15; }

RMAPI Matrix MatrixTranspose(Matrix m) {
    const float16 a = MatrixToFloatV(m);
    float to[16];
    for (int i = 0; i < 16; i++) {
        to[i] = a.v[i % 4 * 4 + i / 4];
    }
    return puffer_matrix(to);
}

RMAPI Matrix MatrixAdd(Matrix left, Matrix right) {
    float16 a = MatrixToFloatV(left);
    const float16 b = MatrixToFloatV(right);
    for (int i = 0; i < 16; i++) {
        a.v[i] += b.v[i];
    }
    return puffer_matrix(a.v);
}

RMAPI Matrix MatrixSubtract(Matrix left, Matrix right) {
    float16 a = MatrixToFloatV(left);
    const float16 b = MatrixToFloatV(right);
    for (int i = 0; i < 16; i++) {
        a.v[i] -= b.v[i];
    }
    return puffer_matrix(a.v);
}

RMAPI Matrix MatrixMultiply(Matrix left, Matrix right) {
    const float16 a = MatrixToFloatV(left), b = MatrixToFloatV(right);
    float to[16];
    for (int i = 0; i < 16; i++) {
        const int row = i % 4, column = i / 4 * 4;
        to[i] = b.v[row] * a.v[column] + b.v[row + 4] * a.v[column + 1] +
                b.v[row + 8] * a.v[column + 2] + b.v[row + 12] * a.v[column + 3];
    }
    return puffer_matrix(to);
}

// The six 2 x 2 determinants of the first two columns, and of the last two.
RMAPI void puffer_minors(const float* v, float* first, float* last) {
    const int rows[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    for (int i = 0; i < 6; i++) {
        const int r = rows[i][0], s = rows[i][1];
        first[i] = v[r] * v[4 + s] - v[s] * v[4 + r];
        last[i] = v[8 + r] * v[12 + s] - v[8 + s] * v[12 + r];
    }
}

// Laplace's expansion by pairs of columns.
RMAPI float MatrixDeterminant(Matrix m) {
    const float16 a = MatrixToFloatV(m);
    float p[6], q[6];
    puffer_minors(a.v, p, q);
    return p[0] * q[5] - p[1] * q[4] + p[2] * q[3] + p[3] * q[2] - p[4] * q[1] + p[5] * q[0];
}

// The adjugate over the determinant.
RMAPI Matrix MatrixInvert(Matrix m) {
    const float16 array = MatrixToFloatV(m);
    const float* a = array.v;
    float p[6], q[6];
    puffer_minors(a, p, q);
    const float f = 1.0f / MatrixDeterminant(m);
    const float to[16] = {
        f * (a[5] * q[5] - a[6] * q[4] + a[7] * q[3]),
        f * (-a[1] * q[5] + a[2] * q[4] - a[3] * q[3]),
        f * (a[13] * p[5] - a[14] * p[4] + a[15] * p[3]),
        f * (-a[9] * p[5] + a[10] * p[4] - a[11] * p[3]),
        f * (-a[4] * q[5] + a[6] * q[2] - a[7] * q[1]),
        f * (a[0] * q[5] - a[2] * q[2] + a[3] * q[1]),
        f * (-a[12] * p[5] + a[14] * p[2] - a[15] * p[1]),
        f * (a[8] * p[5] - a[10] * p[2] + a[11] * p[1]),
        f * (a[4] * q[4] - a[5] * q[2] + a[7] * q[0]),
        f * (-a[0] * q[4] + a[1] * q[2] - a[3] * q[0]),
        f * (a[12] * p[4] - a[13] * p[2] + a[15] * p[0]),
        f * (-a[8] * p[4] + a[9] * p[2] - a[11] * p[0]),
        f * (-a[4] * q[3] + a[5] * q[1] - a[6] * q[0]),
        f * (a[0] * q[3] - a[1] * q[1] + a[2] * q[0]),
        f * (-a[12] * p[3] + a[13] * p[1] - a[14] * p[0]),
        f * (a[8] * p[3] - a[9] * p[1] + a[10] * p[0]),
    };
    return puffer_matrix(to);
}

// Rodrigues' formula; an axis of length 0 is left alone.
RMAPI Matrix MatrixRotate(Vector3 axis, float angle) {
    const Vector3 u = Vector3Normalize(axis);
    const float s = sinf(angle), c = cosf(angle), t = 1.0f - c;
    return puffer_rotation(
        (Vector3){u.x * u.x * t + c, u.x * u.y * t - u.z * s, u.x * u.z * t + u.y * s},
        (Vector3){u.y * u.x * t + u.z * s, u.y * u.y * t + c, u.y * u.z * t - u.x * s},
        (Vector3){u.z * u.x * t - u.y * s, u.z * u.y * t + u.x * s, u.z * u.z * t + c});
}

RMAPI Matrix MatrixRotateX(float angle) {
    const float c = cosf(angle), s = sinf(angle);
    return puffer_rotation((Vector3){1.0f, 0.0f, 0.0f}, (Vector3){0.0f, c, -s},
                           (Vector3){0.0f, s, c});
}

RMAPI Matrix MatrixRotateY(float angle) {
    const float c = cosf(angle), s = sinf(angle);
    return puffer_rotation((Vector3){c, 0.0f, s}, (Vector3){0.0f, 1.0f, 0.0f},
                           (Vector3){-s, 0.0f, c});
}

RMAPI Matrix MatrixRotateZ(float angle) {
    const float c = cosf(angle), s = sinf(angle);
    return puffer_rotation((Vector3){c, -s, 0.0f}, (Vector3){s, c, 0.0f},
                           (Vector3){0.0f, 0.0f, 1.0f});
}

// Around z first, then y, then x.
RMAPI Matrix MatrixRotateXYZ(Vector3 angle) {
    return MatrixMultiply(MatrixMultiply(MatrixRotateZ(angle.z), MatrixRotateY(angle.y)),
                          MatrixRotateX(angle.x));
}

// Around x first, then y, then z.
RMAPI Matrix MatrixRotateZYX(Vector3 angle) {
    return MatrixMultiply(MatrixMultiply(MatrixRotateX(angle.x), MatrixRotateY(angle.y)),
                          MatrixRotateZ(angle.z));
}

// OpenGL's three projections and its camera.
RMAPI Matrix MatrixFrustum(double left, double right, double bottom, double top, double nearPlane,
                           double farPlane) {
    const float w = (float)(right - left), h = (float)(top - bottom);
    const float d = (float)(farPlane - nearPlane), n = (float)nearPlane, f = (float)farPlane;
    Matrix result = {0};
    result.m0 = 2.0f * n / w;
    result.m5 = 2.0f * n / h;
    result.m8 = ((float)right + (float)left) / w;
    result.m9 = ((float)top + (float)bottom) / h;
    result.m10 = -(f + n) / d;
    result.m11 = -1.0f;
    result.m14 = -2.0f * f * n / d;
    return result;
}

RMAPI Matrix MatrixPerspective(double fovY, double aspect, double nearPlane, double farPlane) {
    const double top = nearPlane * tan(fovY / 2.0), right = top * aspect;
    return MatrixFrustum(-right, right, -top, top, nearPlane, farPlane);
}

RMAPI Matrix MatrixOrtho(double left, double right, double bottom, double top, double nearPlane,
                         double farPlane) {
    const float w = (float)(right - left), h = (float)(top - bottom);
    const float d = (float)(farPlane - nearPlane);
    Matrix result = MatrixScale(2.0f / w, 2.0f / h, -2.0f / d);
    result.m12 = -((float)left + (float)right) / w;
    result.m13 = -((float)top + (float)bottom) / h;
    result.m14 = -((float)farPlane + (float)nearPlane) / d;
    return result;
}

RMAPI Matrix MatrixLookAt(Vector3 eye, Vector3 target, Vector3 up) {
    const Vector3 back = Vector3Normalize(Vector3Subtract(eye, target));
    const Vector3 right = Vector3Normalize(Vector3CrossProduct(up, back));
    const Vector3 above = Vector3CrossProduct(back, right);
    Matrix result = puffer_rotation(right, above, back);
    result.m12 = -Vector3DotProduct(right, eye);
    result.m13 = -Vector3DotProduct(above, eye);
    result.m14 = -Vector3DotProduct(back, eye);
    return result;
}

#include "raymath_quaternion.h"

#endif
