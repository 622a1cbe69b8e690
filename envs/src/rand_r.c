// rand_r as glibc computes it, so that a seed gives the same trajectories on every platform.
//
// Three steps of a linear congruential generator give 11 + 10 + 10 bits. Environments call it by
// the name rand_r: they are compiled with -Drand_r=puffer_rand_r.

#include "vec.h"

int puffer_rand_r(unsigned int* seed) {
    uint32_t state = *seed;
    uint32_t result = 0;
    for (int draw = 0; draw < 3; draw++) {
        state = state * 1103515245u + 12345u;
        uint32_t bits = (state >> 16) & (draw == 0 ? 0x7FFu : 0x3FFu);
        result = draw == 0 ? bits : (result << 10) ^ bits;
    }
    *seed = state;
    return (int)result;
}
