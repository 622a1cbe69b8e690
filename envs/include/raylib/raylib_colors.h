// Included by raylib.h: arithmetic on colours.

#ifndef PUFFER_RAYLIB_COLORS_H
#define PUFFER_RAYLIB_COLORS_H

#pragma GCC system_header

#include <math.h>

static inline unsigned char puffer_byte(float value) {
    return (unsigned char)(value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value);
}

static inline bool ColorIsEqual(Color one, Color other) {
    return one.r == other.r && one.g == other.g && one.b == other.b && one.a == other.a;
}

static inline Color ColorAlpha(Color color, float alpha) {
    color.a = puffer_byte(255.0f * alpha);
    return color;
}

static inline Color Fade(Color color, float alpha) { return ColorAlpha(color, alpha); }

static inline int ColorToInt(Color color) {
    return (int)((unsigned int)color.r << 24 | (unsigned int)color.g << 16 |
                 (unsigned int)color.b << 8 | color.a);
}

static inline Color GetColor(unsigned int hex) {
    return (Color){(unsigned char)(hex >> 24), (unsigned char)(hex >> 16),
                   (unsigned char)(hex >> 8), (unsigned char)hex};
}

static inline Vector4 ColorNormalize(Color color) {
    return (Vector4){color.r / 255.0f, color.g / 255.0f, color.b / 255.0f, color.a / 255.0f};
}

static inline Color ColorFromNormalized(Vector4 color) {
    return (Color){puffer_byte(color.x * 255.0f), puffer_byte(color.y * 255.0f),
                   puffer_byte(color.z * 255.0f), puffer_byte(color.w * 255.0f)};
}

static inline Color ColorTint(Color color, Color tint) {
    return (Color){(unsigned char)(color.r * tint.r / 255), (unsigned char)(color.g * tint.g / 255),
                   (unsigned char)(color.b * tint.b / 255),
                   (unsigned char)(color.a * tint.a / 255)};
}

// Towards white for a factor up to 1, towards black down to -1.
static inline Color ColorBrightness(Color color, float factor) {
    const float f = factor > 1.0f ? 1.0f : factor < -1.0f ? -1.0f : factor;
    const float white = f > 0.0f ? f * 255.0f : 0.0f;
    const float keep = f > 0.0f ? 1.0f - f : 1.0f + f;
    return (Color){puffer_byte(color.r * keep + white), puffer_byte(color.g * keep + white),
                   puffer_byte(color.b * keep + white), color.a};
}

static inline Color ColorLerp(Color from, Color to, float factor) {
    const float f = factor < 0.0f ? 0.0f : factor > 1.0f ? 1.0f : factor;
    return (Color){puffer_byte((1.0f - f) * from.r + f * to.r),
                   puffer_byte((1.0f - f) * from.g + f * to.g),
                   puffer_byte((1.0f - f) * from.b + f * to.b),
                   puffer_byte((1.0f - f) * from.a + f * to.a)};
}

// Hue in degrees, saturation and value from 0 to 1.
static inline Vector3 ColorToHSV(Color color) {
    const float r = color.r / 255.0f, g = color.g / 255.0f, b = color.b / 255.0f;
    const float most = fmaxf(r, fmaxf(g, b));
    const float range = most - fminf(r, fminf(g, b));
    if (range < 1e-5f) {
        return (Vector3){0.0f, 0.0f, most};
    }
    float sixth = most == r   ? (g - b) / range
                  : most == g ? 2.0f + (b - r) / range
                              : 4.0f + (r - g) / range;
    sixth += sixth < 0.0f ? 6.0f : 0.0f;
    return (Vector3){60.0f * sixth, range / most, most};
}

static inline Color ColorFromHSV(float hue, float saturation, float value) {
    const float offsets[3] = {5.0f, 3.0f, 1.0f};
    float channels[3];
    for (int i = 0; i < 3; i++) {
        const float k = fmodf(offsets[i] + hue / 60.0f, 6.0f);
        const float near = fmaxf(0.0f, fminf(1.0f, fminf(k, 4.0f - k)));
        channels[i] = value - value * saturation * near;
    }
    return (Color){puffer_byte(channels[0] * 255.0f), puffer_byte(channels[1] * 255.0f),
                   puffer_byte(channels[2] * 255.0f), 255};
}

#endif
