// breakout: a paddle, a ball and 108 bricks, as in PufferLib 4.0.
//
// Positions are pixels, x to the right and y downwards; velocities are pixels per frame, 60 frames
// a second. Everything is float arithmetic, evaluated in the order written and without fused
// multiply-add (-ffp-contract=off): trajectories then equal upstream's.
//
// Collisions are computed before the ball moves. Among all edges that its path crosses in a frame, the
// first one counts: the ball is placed there and reflected, and the rest of the frame is dropped.

#ifndef ENV_FN  // CPU only: a GPU's compiler has its own definitions
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#define ENV_FN static inline
#define ENV_PTR
#define ENV_ROWS(type) type*
#endif

#define MAX_BRICKS 108    // rows * columns; fixed by the size of the observation
#define BRICKS_TOP 50     // y of the first row
#define SPARE_BALLS 5
#define SHORT_PADDLE 31   // width after the ball has touched the ceiling
#define PI 3.14159265358979323846f

enum { NOOP, LEFT, RIGHT };

typedef struct {
    float perf;            // score / max_score
    float score;           // points
    float episode_return;  // sum of unclipped rewards
    float episode_length;  // frames, not steps
    float n;
} Log;

typedef struct {
    ENV_ROWS(float) observations;  // (118,)
    ENV_ROWS(float) actions;       // (1,)
    ENV_ROWS(float) rewards;       // (1,)
    ENV_ROWS(float) terminals;     // (1,)

    union {
        struct {
            float paddle_x;
            float paddle_y;
            float ball_x;
            float ball_y;
            float ball_vx;
            float ball_vy;
            float fired;  // 1 between launch and loss of a ball
            float score;  // points, a whole number
            float balls;  // spare balls, a whole number; -1 after the last is lost
            float paddle_width;
        };
        float seen[10];  // the same ten values, in the order of the observation
    };
    float ball_speed;       // pixels per second, applied at the next paddle hit
    int hits;               // paddle hits since the ball was launched
    int tick;               // frames since the episode began
    uint64_t destroyed[2];  // bit i: brick i is gone

    // Constant after my_init, which derives launch_vx and all after it.
    int frameskip;
    int width;
    int height;
    float full_paddle_width;
    float paddle_height;
    int ball_width;
    int ball_height;
    int brick_width;
    int brick_height;
    int brick_rows;
    int brick_cols;
    float initial_ball_speed;
    float max_ball_speed;
    float paddle_speed;
    int continuous;
    float launch_vx;
    float launch_vy;
    float paddle_step;   // pixels per frame
    float nudge;         // pixels: moves a ball outside of the walls back
    float bricks_bottom;
    float wall_score;    // points of all bricks
    float scale[10];     // divisors of `seen`; infinity leaves an observation at 0

    Log log;
    int num_agents;
    unsigned int rng;
} Breakout;

// Return the smaller of two floats. fminf and fmaxf are slower: library calls that handle NaN.
ENV_FN float smaller(float a, float b) {
    return a < b ? a : b;
}

ENV_FN float larger(float a, float b) {
    return a > b ? a : b;
}

// ---- State --------------------------------------------------------------------------------------

// Return the points for a brick in a row of Breakout: 7, 7, 4, 4, 1, 1 from the top.
ENV_FN int points_of_row(int row) {
    return 7 - 3 * (row / 2);
}

// Begin a new round of Breakout after a lost ball: reset ball and paddle, but keep bricks, score
// and time.
ENV_FN void reset_round(Breakout ENV_PTR* env) {
    env->fired = 0.0f;
    env->hits = 0;
    env->ball_speed = env->initial_ball_speed;
    env->paddle_width = env->full_paddle_width;
    env->paddle_x = (float)env->width / 2.0f - env->paddle_width / 2.0f;
    env->paddle_y = (float)env->height - env->paddle_height - 10.0f;
    env->ball_x = env->paddle_x + (env->paddle_width / 2.0f - (float)(env->ball_width / 2));
    env->ball_y = (float)(env->height / 2 - 30);
    env->ball_vx = 0.0f;
    env->ball_vy = 0.0f;
}

ENV_FN void restore_bricks(Breakout ENV_PTR* env) {
    env->destroyed[0] = 0;
    env->destroyed[1] = 0;
}

ENV_FN void reset_episode(Breakout ENV_PTR* env) {
    env->score = 0.0f;
    env->balls = SPARE_BALLS;
    env->tick = 0;
    restore_bricks(env);
    reset_round(env);
}

// Write the observation of Breakout: 10 scaled numbers of the game, then a 0 or 1 per brick. Bricks
// are stored as bits, so an environment fits in five cache lines.
ENV_FN void write_observations(Breakout ENV_PTR* env) {
    for (int i = 0; i < 10; i++) {
        env->observations[i] = env->seen[i] / env->scale[i];
    }
    for (int brick = 0; brick < 64; brick++) {
        env->observations[10 + brick] = (float)(env->destroyed[0] >> brick & 1);
    }
    for (int brick = 64; brick < MAX_BRICKS; brick++) {
        env->observations[10 + brick] = (float)(env->destroyed[1] >> (brick - 64) & 1);
    }
}

// ---- Collisions ---------------------------------------------------------------------------------

enum { HIT_NOTHING = -1, HIT_SIDE = -2, HIT_CEILING = -3, HIT_PADDLE = -4 };  // else a brick index

typedef struct {
    float time;     // fraction of the frame
    float overlap;  // length of the touching edge: breaks ties of time
    float x;        // ball position and velocity after the hit
    float y;
    float vx;
    float vy;
    int what;
} Hit;

// Return true if the ball reaches an edge `distance` away within a frame. As rounding is monotonic,
// this equals "0 < distance / velocity <= 1" without the division, except for quotients that
// underflow to 0; the functions below divide and test again.
ENV_FN bool reaches(float distance, float velocity) {
    return velocity > 0.0f ? distance > 0.0f && distance <= velocity
                           : distance < 0.0f && distance >= velocity;
}

ENV_FN bool better(const Hit ENV_PTR* best, float time, float overlap) {
    return overlap > 0.0f && time > 0.0f && time <= 1.0f &&
           (time < best->time || (time == best->time && overlap > best->overlap));
}

// Test whether the ball's left or right side at edge_x hits a vertical segment (at x, from `top`,
// `length` long). If it is hit earlier than *best, update *best and return true. The hit's x is the
// segment's.
ENV_FN bool hit_vertical(const Breakout ENV_PTR* env, Hit ENV_PTR* best, float x, float top,
                         float length, float edge_x) {
    const float distance = x - edge_x;
    const float vx = env->ball_vx;
    const float vy = env->ball_vy;
    if (!reaches(distance, vx)) {
        return false;
    }
    const float time = distance / vx;
    const float overlap = smaller(top + length, env->ball_y + (float)env->ball_height + vy * time) -
                          larger(top, env->ball_y + vy * time);
    if (!better(best, time, overlap)) {
        return false;
    }
    const Hit hit = {time, overlap, x, env->ball_y + vy * time, -vx, vy, best->what};
    *best = hit;
    return true;
}

// Test whether the ball's top or bottom at edge_y hits a horizontal segment (at y, from `left`,
// `length` long). If it is hit earlier than *best, update *best and return true.
ENV_FN bool hit_horizontal(const Breakout ENV_PTR* env, Hit ENV_PTR* best, float y, float left,
                           float length, float edge_y) {
    const float distance = y - edge_y;
    const float vx = env->ball_vx;
    const float vy = env->ball_vy;
    if (!reaches(distance, vy)) {
        return false;
    }
    const float time = distance / vy;
    const float overlap = smaller(left + length, env->ball_x + (float)env->ball_width + vx * time) -
                          larger(left, env->ball_x + vx * time);
    if (!better(best, time, overlap)) {
        return false;
    }
    const Hit hit = {time, overlap, env->ball_x + vx * time, y, vx, -vy, best->what};
    *best = hit;
    return true;
}

ENV_FN bool is_destroyed(const Breakout ENV_PTR* env, int brick) {
    return env->destroyed[brick / 64] >> (brick % 64) & 1;
}

ENV_FN void hit_brick(const Breakout ENV_PTR* env, Hit ENV_PTR* best, int brick, float x, float y) {
    const float width = (float)env->brick_width;
    const float height = (float)env->brick_height;
    const float right = env->ball_x + (float)env->ball_width;
    const float bottom = env->ball_y + (float)env->ball_height;
    bool hit = false;
    if (env->ball_vx > 0.0f && hit_vertical(env, best, x, y, height, right)) {
        best->x -= (float)env->ball_width;
        hit = true;
    }
    if (env->ball_vx < 0.0f && hit_vertical(env, best, x + width, y, height, env->ball_x)) {
        hit = true;
    }
    if (env->ball_vy > 0.0f && hit_horizontal(env, best, y, x, width, bottom)) {
        best->y -= (float)env->ball_height;
        hit = true;
    }
    if (env->ball_vy < 0.0f && hit_horizontal(env, best, y + height, x, width, env->ball_y)) {
        hit = true;
    }
    if (hit) {
        best->what = brick;
    }
}

// Test which brick the ball hits first, among those in the rectangle that the ball sweeps in this
// frame.
ENV_FN void hit_bricks(const Breakout ENV_PTR* env, Hit ENV_PTR* best) {
    const float width = (float)env->brick_width;
    const float height = (float)env->brick_height;
    const float x = env->ball_x;
    const float y = env->ball_y;
    const float right = x + (float)env->ball_width;
    const float bottom = y + (float)env->ball_height;
    const float top_y = smaller(y, y + env->ball_vy);
    if (top_y >= env->bricks_bottom) {
        return;
    }
    int row = (int)((top_y - BRICKS_TOP) / height);
    int last_row = (int)((larger(bottom, bottom + env->ball_vy) - BRICKS_TOP) / height);
    int col = (int)(smaller(x, x + env->ball_vx) / width);
    int last_col = (int)(larger(right, right + env->ball_vx) / width);
    row = row < 0 ? 0 : row;
    col = col < 0 ? 0 : col;
    last_row = last_row >= env->brick_rows ? env->brick_rows - 1 : last_row;
    last_col = last_col >= env->brick_cols ? env->brick_cols - 1 : last_col;
    for (int r = row; r <= last_row; r++) {
        for (int c = col; c <= last_col; c++) {
            const int brick = r * env->brick_cols + c;
            if (!is_destroyed(env, brick)) {
                hit_brick(env, best, brick, (float)(c * env->brick_width),
                          (float)(r * env->brick_height + BRICKS_TOP));
            }
        }
    }
}

// Test whether the ball hits a side wall or the ceiling in this frame; there is no floor.
ENV_FN void hit_walls(const Breakout ENV_PTR* env, Hit ENV_PTR* best) {
    const float height = (float)env->height;
    const float right = env->ball_x + (float)env->ball_width;
    if (env->ball_vx < 0.0f && hit_vertical(env, best, 0.0f, 0.0f, height, env->ball_x)) {
        best->what = HIT_SIDE;
    }
    if (env->ball_vx > 0.0f && hit_vertical(env, best, (float)env->width, 0.0f, height, right)) {
        best->x -= (float)env->ball_width;
        best->what = HIT_SIDE;
    }
    if (env->ball_vy < 0.0f &&
        hit_horizontal(env, best, 0.0f, 0.0f, (float)env->width, env->ball_y)) {
        best->what = HIT_CEILING;
    }
}

// Test whether the ball hits the paddle. The point of contact gives the ball's new angle, from -45
// to +45 degrees. The ball doesn't move in this frame. Every fourth hit makes the ball faster,
// effective at the next hit.
ENV_FN void hit_paddle(Breakout ENV_PTR* env, Hit ENV_PTR* best) {
    const float bottom = env->ball_y + (float)env->ball_height;
    if (bottom + env->ball_vy < env->paddle_y ||
        !hit_horizontal(env, best, env->paddle_y, env->paddle_x, env->paddle_width, bottom)) {
        return;
    }
    best->what = HIT_PADDLE;
    const float centre = env->ball_x + (float)(env->ball_width / 2);
    const float where = (centre - env->paddle_x) / env->paddle_width;
    const float angle = -PI / 4.0f + where * (PI / 2.0f);
    env->ball_vx = sinf(angle) * env->ball_speed / 60.0f;
    env->ball_vy = -cosf(angle) * env->ball_speed / 60.0f;
    env->hits += 1;
    if (env->hits % 4 == 0 && env->ball_speed < env->max_ball_speed) {
        env->ball_speed += 64.0f;
    }
    if (env->score == env->wall_score) {
        restore_bricks(env);
    }
}

ENV_FN void destroy_brick(Breakout ENV_PTR* env, int brick) {
    const int row = brick / env->brick_cols;
    env->score += (float)points_of_row(row);
    env->rewards[0] += (float)points_of_row(row);
    env->destroyed[brick / 64] |= (uint64_t)1 << (brick % 64);
    if (row < 3) {
        env->ball_speed = env->max_ball_speed;
    }
}

// Return false if the ball can't touch anything in this frame, as in most frames. A few comparisons
// suffice, because |distance| <= |velocity| whenever reaches(). True may be wrong.
ENV_FN bool is_near_anything(const Breakout ENV_PTR* env) {
    const float vx = fabsf(env->ball_vx);
    const float vy = fabsf(env->ball_vy);
    const float right = env->ball_x + (float)env->ball_width;
    const float bottom = env->ball_y + (float)env->ball_height;
    const bool bricks = smaller(env->ball_y, env->ball_y + env->ball_vy) < env->bricks_bottom;
    const bool sides = fabsf(env->ball_x) <= vx || fabsf((float)env->width - right) <= vx;
    return bricks || sides || fabsf(env->ball_y) <= vy || fabsf(env->paddle_y - bottom) <= vy;
}

// Move the ball to its first collision in this frame, or by an entire frame.
ENV_FN void collide(Breakout ENV_PTR* env) {
    Hit best = {2.0f, -1.0f, 0.0f, 0.0f, 0.0f, 0.0f, HIT_NOTHING};
    hit_bricks(env, &best);
    hit_walls(env, &best);
    hit_paddle(env, &best);
    if (best.what == HIT_PADDLE) {
        return;
    }
    if (best.what == HIT_NOTHING) {
        env->ball_x += env->ball_vx;
        env->ball_y += env->ball_vy;
        return;
    }
    env->ball_x = best.x;
    env->ball_y = best.y;
    env->ball_vx = best.vx;
    env->ball_vy = best.vy;
    if (best.what >= 0) {
        destroy_brick(env, best.what);
    } else if (best.what == HIT_CEILING) {
        env->paddle_width = SHORT_PADDLE;
    }
}

ENV_FN void move_ball(Breakout ENV_PTR* env) {
    if (is_near_anything(env)) {
        collide(env);
    } else {
        env->ball_x += env->ball_vx;
        env->ball_y += env->ball_vy;
    }
}

// ---- Time ---------------------------------------------------------------------------------------

ENV_FN void end_episode(Breakout ENV_PTR* env) {
    env->terminals[0] = 1.0f;
    env->log.perf += env->score / (2.0f * env->wall_score);
    env->log.score += env->score;
    env->log.episode_return += env->score;
    env->log.episode_length += (float)env->tick;
    env->log.n += 1.0f;
    reset_episode(env);
}

// Advance the game of Breakout by one frame, in which the paddle moves by `shift` pixels.
ENV_FN void step_frame(Breakout ENV_PTR* env, float shift) {
    if (env->fired == 0.0f) {
        env->fired = 1.0f;
        env->ball_vy = env->launch_vy;
        env->ball_vx = rand_r(&env->rng) % 2 == 0 ? -env->launch_vx : env->launch_vx;
        shift = env->continuous ? shift : 0.0f;
    }
    env->paddle_x += shift;
    if (env->paddle_x <= 0.0f) {
        env->paddle_x = 0.0f;
    } else {
        env->paddle_x = smaller(env->paddle_x, (float)env->width - env->paddle_width);
    }
    if (env->ball_x < 0.0f) {
        env->ball_x += env->nudge;
    }
    if (env->ball_x > (float)env->width) {
        env->ball_x -= env->nudge;
    }
    if (env->ball_y < 0.0f) {
        env->ball_y += env->nudge;
    }
    move_ball(env);
    if (env->ball_y >= env->paddle_y + env->paddle_height) {
        env->balls -= 1.0f;
        reset_round(env);
    }
    if (env->balls < 0.0f || env->score == 2.0f * env->wall_score) {
        end_episode(env);
    }
}

ENV_FN void c_reset(Breakout ENV_PTR* env) {
    reset_episode(env);
    write_observations(env);
}

// Take one step of Breakout: advance by frameskip frames. If an episode ends in between, the next
// one gets the same action.
ENV_FN void c_step(Breakout ENV_PTR* env) {
    float shift = 0.0f;
    if (env->continuous) {
        shift = env->actions[0] * env->paddle_speed / 60.0f;
    } else if (env->actions[0] == (float)LEFT) {
        shift = -env->paddle_step;
    } else if (env->actions[0] == (float)RIGHT) {
        shift = env->paddle_step;
    }
    for (int frame = 0; frame < env->frameskip; frame++) {
        env->tick += 1;
        step_frame(env, shift);
    }
    write_observations(env);
}

// Draw nothing in C (c_render): the Python script draw.py draws pictures of the environment
// instead.
ENV_FN void c_render(Breakout ENV_PTR* env) {
    (void)env;
}

ENV_FN void c_close(Breakout ENV_PTR* env) {
    (void)env;
}
