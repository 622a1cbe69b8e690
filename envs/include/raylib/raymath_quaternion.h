// Included by raymath_matrix.h: quaternions, x i + y j + z k + w.

#ifndef PUFFER_RAYMATH_QUATERNION_H
#define PUFFER_RAYMATH_QUATERNION_H

#pragma GCC system_header

// ---- By component -------------------------------------------------------------------------------

RMAPI Quaternion QuaternionIdentity(void) { return (Quaternion){0.0f, 0.0f, 0.0f, 1.0f}; }
RMAPI Quaternion QuaternionAdd(Quaternion a, Quaternion b) { return Vector4Add(a, b); }
RMAPI Quaternion QuaternionAddValue(Quaternion q, float add) { return Vector4AddValue(q, add); }
RMAPI Quaternion QuaternionSubtract(Quaternion a, Quaternion b) { return Vector4Subtract(a, b); }
RMAPI Quaternion QuaternionSubtractValue(Quaternion q, float sub) {
    return Vector4SubtractValue(q, sub);
}
RMAPI Quaternion QuaternionScale(Quaternion q, float scale) { return Vector4Scale(q, scale); }
RMAPI Quaternion QuaternionDivide(Quaternion a, Quaternion b) { return Vector4Divide(a, b); }
RMAPI float QuaternionLength(Quaternion q) { return Vector4Length(q); }
RMAPI Quaternion QuaternionNormalize(Quaternion q) { return Vector4Normalize(q); }

RMAPI Quaternion QuaternionLerp(Quaternion a, Quaternion b, float amount) {
    return Vector4Lerp(a, b, amount);
}

RMAPI Quaternion QuaternionNlerp(Quaternion a, Quaternion b, float amount) {
    return Vector4Normalize(Vector4Lerp(a, b, amount));
}

// q and -q are the same rotation.
RMAPI int QuaternionEquals(Quaternion a, Quaternion b) {
    return Vector4Equals(a, b) || Vector4Equals(a, Vector4Negate(b));
}

// ---- Products -----------------------------------------------------------------------------------

// b's rotation first, then a's.
RMAPI Quaternion QuaternionMultiply(Quaternion a, Quaternion b) {
    return (Quaternion){a.x * b.w + a.w * b.x + a.y * b.z - a.z * b.y,
                        a.y * b.w + a.w * b.y + a.z * b.x - a.x * b.z,
                        a.z * b.w + a.w * b.z + a.x * b.y - a.y * b.x,
                        a.w * b.w - a.x * b.x - a.y * b.y - a.z * b.z};
}

// The conjugate over the square of the length; zero stays zero.
RMAPI Quaternion QuaternionInvert(Quaternion q) {
    const float square = Vector4LengthSqr(q);
    const float f = square != 0.0f ? 1.0f / square : 0.0f;
    return square != 0.0f ? (Quaternion){-q.x * f, -q.y * f, -q.z * f, q.w * f} : q;
}

// At constant speed along the shorter arc; close ones in a straight line.
RMAPI Quaternion QuaternionSlerp(Quaternion a, Quaternion b, float amount) {
    float cosine = Vector4DotProduct(a, b);
    if (cosine < 0.0f) {
        b = Vector4Negate(b);
        cosine = -cosine;
    }
    if (cosine >= 1.0f) {
        return a;
    }
    if (cosine > 0.95f) {
        return QuaternionNlerp(a, b, amount);
    }
    const float angle = acosf(cosine);
    const float sine = sqrtf(1.0f - cosine * cosine);
    return Vector4Add(Vector4Scale(a, sinf((1.0f - amount) * angle) / sine),
                      Vector4Scale(b, sinf(amount * angle) / sine));
}

// Hermite's cubic from a to b with the slopes at both, then the length 1.
RMAPI Quaternion QuaternionCubicHermiteSpline(Quaternion a, Quaternion slope1, Quaternion b,
                                              Quaternion slope2, float t) {
    const float t2 = t * t, t3 = t * t * t;
    const Quaternion left = Vector4Add(Vector4Scale(a, 2.0f * t3 - 3.0f * t2 + 1.0f),
                                       Vector4Scale(slope1, t3 - 2.0f * t2 + t));
    const Quaternion right =
        Vector4Add(Vector4Scale(b, 3.0f * t2 - 2.0f * t3), Vector4Scale(slope2, t3 - t2));
    return Vector4Normalize(Vector4Add(left, right));
}

// ---- From and to other forms of a rotation ------------------------------------------------------

// The shortest rotation of one unit vector into another.
RMAPI Quaternion QuaternionFromVector3ToVector3(Vector3 from, Vector3 to) {
    const Vector3 axis = Vector3CrossProduct(from, to);
    return Vector4Normalize(
        (Quaternion){axis.x, axis.y, axis.z, 1.0f + Vector3DotProduct(from, to)});
}

RMAPI Quaternion QuaternionFromAxisAngle(Vector3 axis, float angle) {
    if (Vector3Length(axis) == 0.0f) {
        return QuaternionIdentity();
    }
    const Vector3 u = Vector3Scale(Vector3Normalize(axis), sinf(angle / 2.0f));
    return Vector4Normalize((Quaternion){u.x, u.y, u.z, cosf(angle / 2.0f)});
}

// The axis is x where there is no rotation.
RMAPI void QuaternionToAxisAngle(Quaternion q, Vector3* axis, float* angle) {
    if (fabsf(q.w) > 1.0f) {
        q = Vector4Normalize(q);
    }
    const float sine = sqrtf(1.0f - q.w * q.w);
    *angle = 2.0f * acosf(q.w);
    *axis = sine > EPSILON ? (Vector3){q.x / sine, q.y / sine, q.z / sine}
                           : (Vector3){1.0f, 0.0f, 0.0f};
}

RMAPI Matrix QuaternionToMatrix(Quaternion q) {
    const float x = q.x, y = q.y, z = q.z, w = q.w;
    return puffer_rotation(
        (Vector3){1.0f - 2.0f * (y * y + z * z), 2.0f * (x * y - w * z), 2.0f * (x * z + w * y)},
        (Vector3){2.0f * (x * y + w * z), 1.0f - 2.0f * (x * x + z * z), 2.0f * (y * z - w * x)},
        (Vector3){2.0f * (x * z - w * y), 2.0f * (y * z + w * x), 1.0f - 2.0f * (x * x + y * y)});
}

// The largest component from the diagonal, which divides the others (Shepperd 1978).
RMAPI Quaternion QuaternionFromMatrix(Matrix m) {
    const float fours[4] = {m.m0 - m.m5 - m.m10, m.m5 - m.m0 - m.m10, m.m10 - m.m0 - m.m5,
                            m.m0 + m.m5 + m.m10};
    int most = 3;
    for (int i = 0; i < 3; i++) {
        most = fours[i] > fours[most] ? i : most;
    }
    const float value = sqrtf(fours[most] + 1.0f) * 0.5f, f = 0.25f / value;
    switch (most) {
        case 0:
            return (Quaternion){value, (m.m1 + m.m4) * f, (m.m8 + m.m2) * f, (m.m6 - m.m9) * f};
        case 1:
            return (Quaternion){(m.m1 + m.m4) * f, value, (m.m6 + m.m9) * f, (m.m8 - m.m2) * f};
        case 2:
            return (Quaternion){(m.m8 + m.m2) * f, (m.m6 + m.m9) * f, value, (m.m1 - m.m4) * f};
        default:
            return (Quaternion){(m.m6 - m.m9) * f, (m.m8 - m.m2) * f, (m.m1 - m.m4) * f, value};
    }
}

// Pitch around x first, then yaw around y, then roll around z.
RMAPI Quaternion QuaternionFromEuler(float pitch, float yaw, float roll) {
    const Quaternion x = {sinf(pitch / 2.0f), 0.0f, 0.0f, cosf(pitch / 2.0f)};
    const Quaternion y = {0.0f, sinf(yaw / 2.0f), 0.0f, cosf(yaw / 2.0f)};
    const Quaternion z = {0.0f, 0.0f, sinf(roll / 2.0f), cosf(roll / 2.0f)};
    return QuaternionMultiply(z, QuaternionMultiply(y, x));
}

// The inverse of that: angles around x, y and z.
RMAPI Vector3 QuaternionToEuler(Quaternion q) {
    return (Vector3){
        atan2f(2.0f * (q.w * q.x + q.y * q.z), 1.0f - 2.0f * (q.x * q.x + q.y * q.y)),
        asinf(Clamp(2.0f * (q.w * q.y - q.z * q.x), -1.0f, 1.0f)),
        atan2f(2.0f * (q.w * q.z + q.x * q.y), 1.0f - 2.0f * (q.y * q.y + q.z * q.z)),
    };
}

// ---- With matrices ------------------------------------------------------------------------------

RMAPI Quaternion QuaternionTransform(Quaternion q, Matrix m) {
    return (Quaternion){m.m0 * q.x + m.m4 * q.y + m.m8 * q.z + m.m12 * q.w,
                        m.m1 * q.x + m.m5 * q.y + m.m9 * q.z + m.m13 * q.w,
                        m.m2 * q.x + m.m6 * q.y + m.m10 * q.z + m.m14 * q.w,
                        m.m3 * q.x + m.m7 * q.y + m.m11 * q.z + m.m15 * q.w};
}

// From OpenGL's normalised device coordinates back into the world.
RMAPI Vector3 Vector3Unproject(Vector3 source, Matrix projection, Matrix view) {
    const Matrix back = MatrixInvert(MatrixMultiply(view, projection));
    const Quaternion q =
        QuaternionTransform((Quaternion){source.x, source.y, source.z, 1.0f}, back);
    return (Vector3){q.x / q.w, q.y / q.w, q.z / q.w};
}

// Of a matrix that scales, then rotates, then moves. A mirror image has a negative scale.
RMAPI void MatrixDecompose(Matrix m, Vector3* translation, Quaternion* rotation, Vector3* scale) {
    const Vector3 x = {m.m0, m.m1, m.m2}, y = {m.m4, m.m5, m.m6}, z = {m.m8, m.m9, m.m10};
    const float sign =
        Vector3DotProduct(x, Vector3CrossProduct(y, z)) < 0.0f ? -1.0f : 1.0f;
    *translation = (Vector3){m.m12, m.m13, m.m14};
    *scale = (Vector3){sign * Vector3Length(x), sign * Vector3Length(y), sign * Vector3Length(z)};
    if (scale->x == 0.0f || scale->y == 0.0f || scale->z == 0.0f) {
        *rotation = QuaternionIdentity();
        return;
    }
    const Vector3 a = Vector3Scale(x, 1.0f / scale->x), b = Vector3Scale(y, 1.0f / scale->y);
    const Vector3 c = Vector3Scale(z, 1.0f / scale->z);
    *rotation = QuaternionFromMatrix(puffer_rotation((Vector3){a.x, b.x, c.x},
                                                     (Vector3){a.y, b.y, c.y},
                                                     (Vector3){a.z, b.z, c.z}));
}

#endif
