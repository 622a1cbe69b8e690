// The tensor types of PufferLib 4.0, under upstream's file name. OBS_TENSOR_T is one of them.

#ifndef PUFFER_TENSOR_H
#define PUFFER_TENSOR_H

#include <stdint.h>

#define PUF_MAX_DIMS 8

typedef struct {
    unsigned char* data;
    int64_t shape[PUF_MAX_DIMS];
} ByteTensor;

typedef struct {
    float* data;
    int64_t shape[PUF_MAX_DIMS];
} FloatTensor;

typedef FloatTensor PrecisionTensor;  // upstream: float or bfloat16, chosen when the trainer is built

// Types that an environment may use itself. Observations are bytes or floats.
typedef struct {
    int* data;
    int64_t shape[PUF_MAX_DIMS];
} IntTensor;

typedef struct {
    long* data;
    int64_t shape[PUF_MAX_DIMS];
} LongTensor;

#endif
