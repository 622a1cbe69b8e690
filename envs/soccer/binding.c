// Connects soccer.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "soccer.h"

#define OBS_SIZE 186  // per agent
#define NUM_ATNS 1
#define ACT_SIZES {6}
#define OBS_TENSOR_T ByteTensor
#define MY_OBS_FULL
#define MY_STATE_PLAIN  // the struct owns no memory
#define MY_GPU "soccer.h"  // GPUs can run these rules
#define Env Soccer
#include "vecenv.h"

_Static_assert(OBS_SIZE == NUMBERS, "OBS_SIZE must be what write_observations writes");

// Initialise an environment of soccer. It reads no keys of the configuration's [env] section: other
// sizes of the field or the teams would need another observation.
void my_init(Env* env, Dict* kwargs) {
    (void)kwargs;
    env->num_agents = SEATS;
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->slot_0_score);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->score);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "slot_0_score", log->slot_0_score);
    dict_set(out, "slot_1_score", log->slot_1_score);
    dict_set(out, "draw_rate", log->draw_rate);
}
