// Connects breakout.h to the stepper in ../src; ../squared/binding.c explains each line.

#include "breakout.h"

#define OBS_SIZE 118
#define NUM_ATNS 1
#define ACT_SIZES {3}
#define OBS_TENSOR_T FloatTensor
#define MY_OBS_FULL  // every step writes all 118 elements
#define MY_STATE_PLAIN
#define MY_GPU "breakout.h"  // GPUs can run these rules: see vecenv.h
#define Env Breakout
#include "vecenv.h"

// Compute Breakout's constants, such as launch velocity and observation scales, from its
// parameters.
static void derive_constants(Env* env) {
    const float angle = (float)(3.14159265358979323846 / 3.25);
    env->launch_vx = sinf(angle) * env->initial_ball_speed / 60.0f;
    env->launch_vy = cosf(angle) * env->initial_ball_speed / 60.0f;
    env->paddle_step = env->paddle_speed / 60.0f;
    env->nudge = env->max_ball_speed * 1.1f / 60.0f;
    env->bricks_bottom = (float)(BRICKS_TOP + env->brick_rows * env->brick_height);
    env->wall_score = 0.0f;
    for (int row = 0; row < env->brick_rows; row++) {
        env->wall_score += (float)(env->brick_cols * points_of_row(row));
    }
    const float width = (float)env->width;
    const float height = (float)env->height;
    const float scale[10] = {
        width,  height,       // paddle
        width,  height,       // ball
        512.0f, 512.0f,       // its velocity
        5.0f,                 // fired
        2.0f * env->wall_score,
        (float)SPARE_BALLS,
        env->full_paddle_width,
    };
    memcpy(env->scale, scale, sizeof(scale));
}

// Hide the balls left and the paddle width (observations 8 and 9 of Breakout) by writing 0 instead,
// as PufferLib 5.0's GPU Breakout does.
static void hide_balls_and_width(Env* env) {
    env->scale[8] = INFINITY;
    env->scale[9] = INFINITY;
}

// Initialise a Breakout environment from the parameters in its configuration. Upstream's
// initial_paddle_width and num_agents are unused.
void my_init(Env* env, Dict* kwargs) {
    env->num_agents = 1;
    env->frameskip = (int)dict_get(kwargs, "frameskip")->value;
    env->width = (int)dict_get(kwargs, "width")->value;
    env->height = (int)dict_get(kwargs, "height")->value;
    env->full_paddle_width = (float)dict_get(kwargs, "paddle_width")->value;
    env->paddle_height = (float)dict_get(kwargs, "paddle_height")->value;
    env->ball_width = (int)dict_get(kwargs, "ball_width")->value;
    env->ball_height = (int)dict_get(kwargs, "ball_height")->value;
    env->brick_width = (int)dict_get(kwargs, "brick_width")->value;
    env->brick_height = (int)dict_get(kwargs, "brick_height")->value;
    env->brick_rows = (int)dict_get(kwargs, "brick_rows")->value;
    env->brick_cols = (int)dict_get(kwargs, "brick_cols")->value;
    env->initial_ball_speed = (float)dict_get(kwargs, "initial_ball_speed")->value;
    env->max_ball_speed = (float)dict_get(kwargs, "max_ball_speed")->value;
    env->paddle_speed = (float)dict_get(kwargs, "paddle_speed")->value;
    env->continuous = (int)dict_get(kwargs, "continuous")->value;
#ifdef PUFFER_MLX
    if (env->frameskip < 1) {
        dict_reject(kwargs, "frameskip", "at least 1");
    }
    if (env->brick_width < 1 || env->brick_height < 1) {
        dict_reject(kwargs, env->brick_width < 1 ? "brick_width" : "brick_height", "at least 1");
    }
    if (env->brick_rows < 1 || env->brick_rows > 11) {  // with 12 rows the sum of all points is negative
        dict_reject(kwargs, "brick_rows", "1 to 11");
    } else if (env->brick_cols < 1 || env->brick_cols > MAX_BRICKS / env->brick_rows) {
        dict_reject(kwargs, "brick_cols", "at least 1, and at most 108 bricks in all");
    }
#endif
    derive_constants(env);
    const DictItem* hide = dict_get_unsafe(kwargs, "hide_balls_and_width");
    if (hide != NULL && hide->value == 1) {
        hide_balls_and_width(env);
    }
#ifdef PUFFER_MLX
    if (hide != NULL && hide->value != 0 && hide->value != 1) {
        dict_reject(kwargs, "hide_balls_and_width", "0 or 1");
    }
#endif
}

void my_log(Log* log, Dict* out) {
    dict_set(out, "perf", log->perf);
    dict_set(out, "score", log->score);
    dict_set(out, "episode_return", log->episode_return);
    dict_set(out, "episode_length", log->episode_length);
}
