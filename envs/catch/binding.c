// Connects catch.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "catch.h"

#define OBS_SIZE 1296
#define MY_OBS_SHAPE {36, 36, 1}  // height, width, channels: image encoders work on it
#define NUM_ATNS 1
#define ACT_SIZES {3}
#define OBS_TENSOR_T ByteTensor
#define MY_STATE_PLAIN  // the struct owns no memory
#define MY_GPU "catch.h"  // GPUs can run these rules
#define Env Catch
#include "vecenv.h"

static int whole_number(Dict* kwargs, const char* key, int least, int most, const char* expected) {
    const double value = dict_get(kwargs, key)->value;
#ifdef PUFFER_MLX
    if (!(value >= least && value <= most && value == (int)value)) {
        dict_reject(kwargs, key, expected);
        return least;
    }
#endif
    return (int)value;
}

void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->balls = whole_number(kwargs, "balls", 1, 1000, "a whole number from 1 to 1000");
    env->paddle_width = whole_number(kwargs, "paddle_width", 1, 36, "a whole number from 1 to 36");
    env->paddle_speed = whole_number(kwargs, "paddle_speed", 0, 36, "a whole number from 0 to 36");
    env->ball_speed = whole_number(kwargs, "ball_speed", 1, 32, "a whole number from 1 to 32");
    env->max_drift = whole_number(kwargs, "max_drift", 0, 33, "a whole number from 0 to 33");
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
