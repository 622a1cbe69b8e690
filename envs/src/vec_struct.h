// The struct of all environments, shared by vec.c and create.c.

#ifndef PUFFER_VEC_STRUCT_H
#define PUFFER_VEC_STRUCT_H

#include "collect.h"
#include "dict.h"
#include "ending.h"
#include "pool.h"
#include "vec.h"

struct PufferVec {
    StaticVec vec;
    unsigned int seed;  // seed of environment 0
    int* agents;       // (size + 1,) first agent of each environment, then N
    PufferRows* rows;  // (Q,) rows that each group's step writes
    PufferPool* pool;
    PufferCollect collect;  // the rollout in progress
    bool collecting;        // true until the rollout is fetched
    PufferEnd ending;
    Dict* vec_kwargs;
    Dict* env_kwargs;
    char* keys;  // the text of all keys
};

#endif
