// What vec.c and create.c share.

#ifndef PUFFER_VEC_STRUCT_H
#define PUFFER_VEC_STRUCT_H

#include "collect.h"
#include "dict.h"
#include "ending.h"
#include "pool.h"
#include "vec.h"

struct PufferVec {
    StaticVec vec;
    unsigned int seed;  // of environment 0
    int* agents;       // (size + 1,) first agent of each environment, then N
    PufferRows* rows;  // (Q,) where each group's step writes
    PufferPool* pool;
    PufferCollect collect;  // the rollout under way
    bool collecting;        // until it is fetched
    PufferEnd ending;
    Dict* vec_kwargs;
    Dict* env_kwargs;
    char* keys;  // the text of all keys
};

#endif
