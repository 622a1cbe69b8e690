// A program of its own, as upstream builds with ./build.sh orbit --local: not part of the library.
#include "orbit.h"

int main(void) {
    Orbit env = {.num_agents = 1, .thrust = 0.3f, .width = 0.1f, .max_steps = 200};
    env.observations = (float*)calloc(8, sizeof(float));
    env.actions = (float*)calloc(1, sizeof(float));
    env.rewards = (float*)calloc(1, sizeof(float));
    env.terminals = (float*)calloc(1, sizeof(float));
    c_reset(&env);
    c_render(&env);
    while (!WindowShouldClose()) {
        env.actions[0] = IsKeyDown(KEY_UP) ? FORWARD : IsKeyDown(KEY_DOWN) ? BACKWARD : COAST;
        c_step(&env);
        c_render(&env);
    }
    c_close(&env);
    return 0;
}
