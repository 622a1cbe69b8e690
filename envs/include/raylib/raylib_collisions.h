// Included by raylib.h: which shapes overlap, and what a ray hits.

#ifndef PUFFER_RAYLIB_COLLISIONS_H
#define PUFFER_RAYLIB_COLLISIONS_H

#pragma GCC system_header

#include <float.h>
#include <math.h>

// ---- On the plane -------------------------------------------------------------------------------

static inline bool CheckCollisionRecs(Rectangle a, Rectangle b) {
    return a.x < b.x + b.width && a.x + a.width > b.x && a.y < b.y + b.height &&
           a.y + a.height > b.y;
}

static inline bool CheckCollisionCircles(Vector2 a, float radius1, Vector2 b, float radius2) {
    const float dx = b.x - a.x, dy = b.y - a.y, reach = radius1 + radius2;
    return dx * dx + dy * dy <= reach * reach;
}

static inline bool CheckCollisionCircleRec(Vector2 center, float radius, Rectangle rec) {
    const float dx = center.x - fmaxf(rec.x, fminf(center.x, rec.x + rec.width));
    const float dy = center.y - fmaxf(rec.y, fminf(center.y, rec.y + rec.height));
    return dx * dx + dy * dy <= radius * radius;
}

static inline bool CheckCollisionCircleLine(Vector2 center, float radius, Vector2 a, Vector2 b) {
    const float x = b.x - a.x, y = b.y - a.y, square = x * x + y * y;
    float t = square > 0.0f ? ((center.x - a.x) * x + (center.y - a.y) * y) / square : 0.0f;
    t = t < 0.0f ? 0.0f : t > 1.0f ? 1.0f : t;
    const float dx = a.x + t * x - center.x, dy = a.y + t * y - center.y;
    return dx * dx + dy * dy <= radius * radius;
}

static inline bool CheckCollisionPointRec(Vector2 point, Rectangle rec) {
    return point.x >= rec.x && point.x < rec.x + rec.width && point.y >= rec.y &&
           point.y < rec.y + rec.height;
}

static inline bool CheckCollisionPointCircle(Vector2 point, Vector2 center, float radius) {
    return CheckCollisionCircles(point, 0.0f, center, radius);
}

// Strictly inside: all three barycentric coordinates are positive.
static inline bool CheckCollisionPointTriangle(Vector2 p, Vector2 a, Vector2 b, Vector2 c) {
    const float area = (b.y - c.y) * (a.x - c.x) + (c.x - b.x) * (a.y - c.y);
    const float u = ((b.y - c.y) * (p.x - c.x) + (c.x - b.x) * (p.y - c.y)) / area;
    const float v = ((c.y - a.y) * (p.x - c.x) + (a.x - c.x) * (p.y - c.y)) / area;
    return u > 0.0f && v > 0.0f && 1.0f - u - v > 0.0f;
}

// Within `threshold` pixels of the line through a and b, and between its ends along its long side.
static inline bool CheckCollisionPointLine(Vector2 point, Vector2 a, Vector2 b, int threshold) {
    const float x = b.x - a.x, y = b.y - a.y;
    const float cross = (point.x - a.x) * y - (point.y - a.y) * x;
    if (fabsf(cross) >= (float)threshold * fmaxf(fabsf(x), fabsf(y))) {
        return false;
    }
    return fabsf(x) >= fabsf(y) ? point.x >= fminf(a.x, b.x) && point.x <= fmaxf(a.x, b.x)
                                : point.y >= fminf(a.y, b.y) && point.y <= fmaxf(a.y, b.y);
}

// An odd number of edges to the right of the point.
static inline bool CheckCollisionPointPoly(Vector2 point, const Vector2* points, int pointCount) {
    bool inside = false;
    for (int i = 0, j = pointCount - 1; pointCount > 2 && i < pointCount; j = i++) {
        const Vector2 a = points[i], b = points[j];
        if ((a.y > point.y) != (b.y > point.y) &&
            point.x < (b.x - a.x) * (point.y - a.y) / (b.y - a.y) + a.x) {
            inside = !inside;
        }
    }
    return inside;
}

// Where two segments cross, if they do; the point may be NULL.
static inline bool CheckCollisionLines(Vector2 a, Vector2 b, Vector2 c, Vector2 d, Vector2* point) {
    const float ux = b.x - a.x, uy = b.y - a.y, vx = d.x - c.x, vy = d.y - c.y;
    const float cross = ux * vy - uy * vx;
    if (fabsf(cross) < FLT_EPSILON) {
        return false;
    }
    const float t = ((c.x - a.x) * vy - (c.y - a.y) * vx) / cross;
    const float s = ((c.x - a.x) * uy - (c.y - a.y) * ux) / cross;
    if (t < 0.0f || t > 1.0f || s < 0.0f || s > 1.0f) {
        return false;
    }
    if (point != NULL) {
        *point = (Vector2){a.x + t * ux, a.y + t * uy};
    }
    return true;
}

// What two rectangles share; all zero if nothing.
static inline Rectangle GetCollisionRec(Rectangle a, Rectangle b) {
    const float left = fmaxf(a.x, b.x), right = fminf(a.x + a.width, b.x + b.width);
    const float top = fmaxf(a.y, b.y), bottom = fminf(a.y + a.height, b.y + b.height);
    if (left >= right || top >= bottom) {
        return (Rectangle){0};
    }
    return (Rectangle){left, top, right - left, bottom - top};
}

// ---- In space -----------------------------------------------------------------------------------

static inline Vector3 puffer_from_to(Vector3 a, Vector3 b) {
    return (Vector3){b.x - a.x, b.y - a.y, b.z - a.z};
}

static inline float puffer_dot(Vector3 a, Vector3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

static inline Vector3 puffer_cross(Vector3 a, Vector3 b) {
    return (Vector3){a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

static inline Vector3 puffer_along(Ray ray, float t) {
    return (Vector3){ray.position.x + t * ray.direction.x, ray.position.y + t * ray.direction.y,
                     ray.position.z + t * ray.direction.z};
}

static inline Vector3 puffer_unit(Vector3 v) {
    const float length = sqrtf(puffer_dot(v, v));
    return length > 0.0f ? (Vector3){v.x / length, v.y / length, v.z / length} : v;
}

static inline bool CheckCollisionSpheres(Vector3 a, float radius1, Vector3 b, float radius2) {
    const Vector3 d = puffer_from_to(a, b);
    return puffer_dot(d, d) <= (radius1 + radius2) * (radius1 + radius2);
}

static inline bool CheckCollisionBoxes(BoundingBox a, BoundingBox b) {
    return a.max.x >= b.min.x && a.min.x <= b.max.x && a.max.y >= b.min.y && a.min.y <= b.max.y &&
           a.max.z >= b.min.z && a.min.z <= b.max.z;
}

static inline bool CheckCollisionBoxSphere(BoundingBox box, Vector3 center, float radius) {
    const Vector3 near = {fmaxf(box.min.x, fminf(center.x, box.max.x)),
                          fmaxf(box.min.y, fminf(center.y, box.max.y)),
                          fmaxf(box.min.z, fminf(center.z, box.max.z))};
    return CheckCollisionSpheres(center, radius, near, 0.0f);
}

// The direction's length is 1. From inside, the way out is what is hit. As in raylib, the line
// behind the ray counts: then the distance is negative.
static inline RayCollision GetRayCollisionSphere(Ray ray, Vector3 center, float radius) {
    const Vector3 to = puffer_from_to(ray.position, center);
    const float ahead = puffer_dot(to, ray.direction);
    const float square = radius * radius - (puffer_dot(to, to) - ahead * ahead);
    RayCollision found = {0};
    if (square < 0.0f) {
        return found;
    }
    const bool inside = puffer_dot(to, to) < radius * radius;
    found.distance = inside ? ahead + sqrtf(square) : ahead - sqrtf(square);
    found.hit = true;
    found.point = puffer_along(ray, found.distance);
    found.normal = puffer_unit(inside ? puffer_from_to(found.point, center)
                                      : puffer_from_to(center, found.point));
    return found;
}

// Slabs: the ray is inside the box where it is inside all three pairs of planes.
static inline RayCollision GetRayCollisionBox(Ray ray, BoundingBox box) {
    const float from[3] = {ray.position.x, ray.position.y, ray.position.z};
    const float way[3] = {ray.direction.x, ray.direction.y, ray.direction.z};
    const float low[3] = {box.min.x, box.min.y, box.min.z};
    const float high[3] = {box.max.x, box.max.y, box.max.z};
    float enter = -FLT_MAX, leave = FLT_MAX;
    int in = 0, out = 0;
    for (int i = 0; i < 3; i++) {
        const float a = (low[i] - from[i]) / way[i], b = (high[i] - from[i]) / way[i];
        if (fminf(a, b) > enter) {
            enter = fminf(a, b);
            in = i;
        }
        if (fmaxf(a, b) < leave) {
            leave = fmaxf(a, b);
            out = i;
        }
    }
    const bool inside = enter < 0.0f;
    const int side = inside ? out : in;
    float normal[3] = {0.0f, 0.0f, 0.0f};
    normal[side] = way[side] > 0.0f ? -1.0f : 1.0f;
    RayCollision found = {.hit = leave >= 0.0f && enter <= leave};
    found.distance = inside ? leave : enter;
    found.point = puffer_along(ray, found.distance);
    found.normal = (Vector3){normal[0], normal[1], normal[2]};
    return found;
}

// Moeller and Trumbore's intersection, from either side.
static inline RayCollision GetRayCollisionTriangle(Ray ray, Vector3 a, Vector3 b, Vector3 c) {
    const Vector3 one = puffer_from_to(a, b), two = puffer_from_to(a, c);
    const Vector3 p = puffer_cross(ray.direction, two);
    const float area = puffer_dot(one, p);
    RayCollision found = {0};
    if (fabsf(area) < 1e-6f) {
        return found;
    }
    const Vector3 t = puffer_from_to(a, ray.position);
    const Vector3 q = puffer_cross(t, one);
    const float u = puffer_dot(t, p) / area, v = puffer_dot(ray.direction, q) / area;
    const float distance = puffer_dot(two, q) / area;
    if (u < 0.0f || v < 0.0f || u + v > 1.0f || distance <= 1e-6f) {
        return found;
    }
    return (RayCollision){true, distance, puffer_along(ray, distance),
                          puffer_unit(puffer_cross(one, two))};
}

static inline RayCollision GetRayCollisionQuad(Ray ray, Vector3 a, Vector3 b, Vector3 c,
                                               Vector3 d) {
    const RayCollision found = GetRayCollisionTriangle(ray, a, b, d);
    return found.hit ? found : GetRayCollisionTriangle(ray, b, c, d);
}

#endif
