// catch: catch falling balls with a paddle. Copy this one for observations that are images.
//
// In each step the paddle moves (0 left, 1 stay, 2 right), then the ball: down, and sideways at a
// random speed, bouncing off the walls. At the paddle's rows the ball is caught (+1) or missed (-1),
// and the next one appears at the top. An episode is a fixed number of balls.
//
// The agent sees pixels. One picture doesn't show the ball's sideways speed.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <stdbool.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

#define SIZE 36  // pixels per side; NatureEncoder's convolutions divide it evenly
#define BALL_SIZE 3
#define PADDLE_HEIGHT 2
#define PADDLE_TOP (SIZE - PADDLE_HEIGHT)

enum { LEFT, STAY, RIGHT };
enum { DARK = 0, PADDLE = 128, BALL = 255 };  // pixels

typedef struct {
    float perf;            // fraction of balls caught
    float score;           // balls caught
    float episode_return;  // balls caught minus balls missed
    float episode_length;  // steps
    float n;
} Log;

typedef struct {
    Log log;
    ENV_ROWS(unsigned char) observations;  // (36, 36, 1) pixels, row by row from the top
    ENV_ROWS(float) actions;               // (1,)
    ENV_ROWS(float) rewards;               // (1,)
    ENV_ROWS(float) terminals;             // (1,)
    int num_agents;
    unsigned int rng;

    // Parameters; speeds are pixels per step.
    int balls;  // per episode
    int paddle_width;
    int paddle_speed;
    int ball_speed;  // downwards
    int max_drift;   // largest sideways speed of a ball

    int paddle_x;  // left column
    int ball_x;    // left column
    int ball_y;    // top row
    int drift;     // sideways speed of this ball; positive to the right
    int dropped;   // balls caught or missed in this episode
    int caught;
    int tick;
} Catch;

ENV_FN void fill(Catch ENV_PTR* env, int x, int y, int width, int height, unsigned char pixel) {
    for (int row = y; row < y + height; row++) {
        for (int col = x; col < x + width; col++) {
            env->observations[row * SIZE + col] = pixel;
        }
    }
}

ENV_FN void paint_ball(Catch ENV_PTR* env, unsigned char pixel) {
    fill(env, env->ball_x, env->ball_y, BALL_SIZE, BALL_SIZE, pixel);
}

ENV_FN void paint_paddle(Catch ENV_PTR* env, unsigned char pixel) {
    fill(env, env->paddle_x, PADDLE_TOP, env->paddle_width, PADDLE_HEIGHT, pixel);
}

ENV_FN void launch_ball(Catch ENV_PTR* env) {
    env->ball_x = rand_r(&env->rng) % (SIZE - BALL_SIZE + 1);
    env->ball_y = 0;
    env->drift = rand_r(&env->rng) % (2 * env->max_drift + 1) - env->max_drift;
    paint_ball(env, BALL);
}

ENV_FN void c_reset(Catch ENV_PTR* env) {
    fill(env, 0, 0, SIZE, SIZE, DARK);
    env->paddle_x = (SIZE - env->paddle_width) / 2;
    env->dropped = 0;
    env->caught = 0;
    env->tick = 0;
    paint_paddle(env, PADDLE);
    launch_ball(env);
}

ENV_FN void end_episode(Catch ENV_PTR* env) {
    env->terminals[0] = 1.0f;
    env->log.perf += (float)env->caught / (float)env->balls;
    env->log.score += (float)env->caught;
    env->log.episode_return += (float)(2 * env->caught - env->balls);
    env->log.episode_length += (float)env->tick;
    env->log.n += 1.0f;
    c_reset(env);
}

ENV_FN void move_paddle(Catch ENV_PTR* env) {
    const float action = env->actions[0];
    const int shift = action == (float)LEFT    ? -env->paddle_speed
                      : action == (float)RIGHT ? env->paddle_speed
                                               : 0;
    const int rightmost = SIZE - env->paddle_width;
    paint_paddle(env, DARK);
    env->paddle_x += shift;
    env->paddle_x = env->paddle_x < 0 ? 0 : env->paddle_x;
    env->paddle_x = env->paddle_x > rightmost ? rightmost : env->paddle_x;
    paint_paddle(env, PADDLE);
}

// Move the falling ball of the game Catch by one step. A wall reflects the rest of its sideways
// movement.
ENV_FN void move_ball(Catch ENV_PTR* env) {
    const int rightmost = SIZE - BALL_SIZE;
    env->ball_y += env->ball_speed;
    env->ball_x += env->drift;
    if (env->ball_x < 0 || env->ball_x > rightmost) {
        env->ball_x = (env->ball_x < 0 ? 0 : 2 * rightmost) - env->ball_x;
        env->drift = -env->drift;
    }
}

// Step the game Catch. Writes only the pixels of the observation that change; the others still have
// their previous values.
ENV_FN void c_step(Catch ENV_PTR* env) {
    env->tick += 1;
    move_paddle(env);
    paint_ball(env, DARK);
    move_ball(env);
    if (env->ball_y + BALL_SIZE <= PADDLE_TOP) {
        paint_ball(env, BALL);
        return;
    }
    const bool caught = env->ball_x + BALL_SIZE > env->paddle_x &&
                        env->ball_x < env->paddle_x + env->paddle_width;
    env->rewards[0] = caught ? 1.0f : -1.0f;
    env->caught += caught;
    env->dropped += 1;
    if (env->dropped == env->balls) {
        end_episode(env);
    } else {
        launch_ball(env);
    }
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(Catch ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(Catch ENV_PTR* env) {
    (void)env;
}
