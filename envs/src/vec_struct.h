// What vec.c and create.c share.

#ifndef PUFFER_VEC_STRUCT_H
#define PUFFER_VEC_STRUCT_H

#include "dict.h"
#include "pool.h"
#include "vec.h"

struct PufferVec {
    StaticVec vec;
    int* agents;       // (size + 1,) first agent of each environment, then N
    PufferRows* rows;  // (Q,) where each group's step writes
    PufferPool* pool;
    struct PufferCollect* collect;  // the rollout under way, if one is
    Dict* vec_kwargs;
    Dict* env_kwargs;
    char* keys;  // the text of all keys
};

#endif
