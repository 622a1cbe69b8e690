// Connects target.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "target.h"

#define OBS_SIZE 28       // per agent
#define NUM_ATNS 2        // two heads ...
#define ACT_SIZES {9, 5}  // ... turn and speed
#define OBS_TENSOR_T FloatTensor
#define MY_OBS_FULL
#define MY_STATE_PLAIN  // the struct owns no memory
#define Env Target
#include "vecenv.h"

_Static_assert(OBS_SIZE == NUMBERS, "OBS_SIZE must be what write_observations writes");

// Initialise an environment of Target. It reads no keys of the configuration's [env] section:
// another size of the world or number of agents would need another observation.
void my_init(Env* env, Dict* kwargs) {
    (void)kwargs;
    env->num_agents = NUM_AGENTS;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
