// Connects memory.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "memory.h"

#define OBS_SIZE 1
#define NUM_ATNS 1
#define ACT_SIZES {2}
#define OBS_TENSOR_T FloatTensor
#define MY_OBS_FULL
#define MY_STATE_PLAIN  // the struct owns no memory
#define MY_GPU "memory.h"  // GPUs can run these rules
#define Env Memory
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->length = (int)dict_get(kwargs, "length")->value;
#ifdef PUFFER_MLX
    if (env->length < 1) {
        dict_reject(kwargs, "length", "a whole number from 1 up");
    }
#endif
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);
}
