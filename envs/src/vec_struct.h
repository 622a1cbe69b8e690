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
    int* agents;       // (size + 1,) index of the first agent of each environment; the last is N
    PufferRows* rows;  // (Q,) rows that each group's step writes
    PufferPool* pool;
    PufferCollect collect;  // the rollout in progress
    bool collecting;        // true from puffer_collect until puffer_collected returned its end
    PufferEnd ending;       // why no further step is possible, if so
    Dict* vec_kwargs;       // sections [vec] and [env] of the configuration
    Dict* env_kwargs;
    char* keys;  // memory of the texts in both dictionaries
};

#endif
