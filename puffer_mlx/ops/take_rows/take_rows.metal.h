// A gather of segments: source (at least T, N, D), rows (S,) -> (T, S, D). Bytes are copied, whatever they mean: by four
// where D is a multiple of that.

#pragma once

kernel void take_words(device const float* source, device const int* rows, device const int* sizes, device float* out,
                       uint i) {
#define NUMBER float
#include "copy.metal.h"
}

kernel void take_bytes(device const uint8_t* source, device const int* rows, device const int* sizes,
                       device uint8_t* out, uint i) {
#define NUMBER uint8_t
#include "copy.metal.h"
}
