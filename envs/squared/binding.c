// Connects squared.h to the stepper, the code in ../src that steps many environments at once. For a
// new environment copy this folder, rename the folder and its header, and edit the definitions
// below.

#include "squared.h"

// Cells of the largest grid that my_init accepts. Smaller grids leave the remaining elements 0. The
// size is fixed when this file is compiled, because the policy's first layer has this many inputs.
#define OBS_SIZE 121
#define NUM_ATNS 1               // one action per agent and step ...
#define ACT_SIZES {5}            // ... with five choices
#define OBS_TENSOR_T ByteTensor  // a byte per cell is a quarter of the memory of a float
#define MY_STATE_PLAIN           // the struct owns no memory, so its bytes and the rows are the
                                 // game's entire state; for allocated memory see MY_STATE in
                                 // vecenv.h
#define MY_GPU "squared.h"       // GPUs can run these rules
#define Env Squared
#include "vecenv.h"

// Initialise an environment. Called once, after env->rng was seeded. kwargs has the keys of the
// configuration's [env] section. A missing key is an error that names it, so there are no hidden
// defaults.
void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->size = (int)dict_get(kwargs, "size")->value;
#ifdef PUFFER_MLX  // upstream's vecenv.h has no dict_reject
    if (env->size < 2 || env->size * env->size > OBS_SIZE) {
        dict_reject(kwargs, "size", "a whole number from 2 to 11");
    }
#endif
}

// Copy an environment's log to a dictionary. `log` has means over episodes. The dashboard shows the
// entries in this order; the stepper adds n, the number of episodes.
void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
