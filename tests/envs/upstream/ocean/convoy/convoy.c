// A program of its own, as upstream builds with ./build.sh convoy --local: not part of the library.
#include "convoy.h"

int main(void) {
    Convoy env = {.num_agents = NUM_TRUCKS, .length = 100, .works = 2, .max_steps = 120};
    init(&env);
    env.observations = (unsigned char*)calloc(NUM_TRUCKS * TRUCK_OBS, 1);
    env.actions = (float*)calloc(NUM_TRUCKS * 2, sizeof(float));
    env.rewards = (float*)calloc(NUM_TRUCKS, sizeof(float));
    env.terminals = (float*)calloc(NUM_TRUCKS, sizeof(float));
    c_reset(&env);
    while (true) {
        for (int i = 0; i < 2 * NUM_TRUCKS; i++) {
            env.actions[i] = (float)GetRandomValue(0, i % 2 == 0 ? 2 : 1);
        }
        c_step(&env);
        c_render(&env);
    }
}
