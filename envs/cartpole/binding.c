// Connects cartpole.h to the stepper in ../src; ../squared/binding.c explains each line.
//
// The action space is fixed when the code is compiled, so there are two environments: cartpole pushes
// left or right; ../cartpole_continuous defines the two macros below differently and includes this.

#include "cartpole.h"

#ifndef ACT_SIZES
#define ACT_SIZES {2}
#define CONTINUOUS 0
#endif
#define OBS_SIZE 4
#define NUM_ATNS 1
#define OBS_TENSOR_T FloatTensor
#define MY_OBS_FULL
#define MY_STATE_PLAIN  // the struct owns no memory
#define MY_GPU "../cartpole/cartpole.h"  // relative to the file that includes this
#define Env Cartpole
#include "vecenv.h"

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->cart_mass = (float)dict_get(kwargs, "cart_mass")->value;
    env->pole_mass = (float)dict_get(kwargs, "pole_mass")->value;
    env->pole_length = (float)dict_get(kwargs, "pole_length")->value;
    env->gravity = (float)dict_get(kwargs, "gravity")->value;
    env->force_mag = (float)dict_get(kwargs, "force_mag")->value;
    env->dt = (float)dict_get(kwargs, "dt")->value;
    env->continuous = dict_get(kwargs, "continuous")->value != 0.0;
#ifdef PUFFER_MLX
    static const char* const POSITIVE[] = {"cart_mass", "pole_length", "force_mag", "dt"};
    for (size_t i = 0; i < sizeof(POSITIVE) / sizeof(POSITIVE[0]); i++) {
        if (!((float)dict_get(kwargs, POSITIVE[i])->value > 0.0f)) {
            dict_reject(kwargs, POSITIVE[i], "a number above 0");
        }
    }
    if (!(env->pole_mass >= 0.0f)) {
        dict_reject(kwargs, "pole_mass", "at least 0");
    }
    if (dict_get(kwargs, "continuous")->value != CONTINUOUS) {
        dict_reject(kwargs, "continuous",
                    CONTINUOUS ? "1 (the environment with two actions is cartpole)"
                               : "0 (the environment with a continuous action is "
                                 "cartpole_continuous)");
    }
#endif
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "score", log->score);
    dict_set(out, "perf", log->perf);
    dict_set(out, "episode_length", log->episode_length);
    dict_set(out, "x_threshold_termination", log->x_threshold_termination);
    dict_set(out, "pole_angle_termination", log->pole_angle_termination);
    dict_set(out, "max_steps_termination", log->max_steps_termination);
}
