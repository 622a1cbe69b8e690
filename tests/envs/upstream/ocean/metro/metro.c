// A program of its own, as upstream builds with ./build.sh metro --local: not part of the library.
#include <stdbool.h>
#include "metro.h"

int main(void) {
    float observations[METRO_OBS], actions[1], rewards[1], terminals[1];
    unsigned char mask[CHOICES];
    Metro env = {.observations = observations, .actions = actions, .rewards = rewards,
                 .terminals = terminals, .action_mask = mask, .num_agents = 1, .max_steps = 24};
    env.network = load_network("resources/metro/lines.txt");
    c_reset(&env);
    for (int i = 0; i < 100; i++) {
        do {
            actions[0] = (float)(rand() % CHOICES);
        } while (!mask[(int)actions[0]]);
        c_step(&env);
        c_render(&env);
    }
    free((void*)env.network);
    return 0;
}
