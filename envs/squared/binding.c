// Connects squared.h to the batch stepper. To make an environment of your own, copy this folder,
// rename it and its header, and change what is below.

#include "squared.h"

// The largest grid that my_init accepts; a smaller one leaves the rest of the row 0. The shape must
// be known when this is compiled, because the policy's first layer has this many inputs.
#define OBS_SIZE 121
#define NUM_ATNS 1               // one action per agent and step ...
#define ACT_SIZES {5}            // ... with five choices
#define OBS_TENSOR_T ByteTensor  // a byte per cell is a quarter of the memory of a float
#define MY_STATE_PLAIN           // the struct has no pointers of its own, so that saving its bytes
                                 // and the rows saves the game; with memory of your own, see
                                 // MY_STATE in vecenv.h
#define MY_GPU "squared.h"       // its rules compile for a GPU, too
#define Env Squared
#include "vecenv.h"

// Called once per environment, after env->rng was seeded. The keys are those of [env] in the
// configuration; one that isn't there is reported by name, so there are no hidden defaults.
void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->size = (int)dict_get(kwargs, "size")->value;
#ifdef PUFFER_MLX  // upstream's vecenv.h has no dict_reject
    if (env->size < 2 || env->size * env->size > OBS_SIZE) {
        dict_reject(kwargs, "size", "a whole number from 2 to 11");
    }
#endif
}

// Called with means over episodes. The order is that of the dashboard; n is added for you.
void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
