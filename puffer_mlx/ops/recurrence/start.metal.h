// First part of a kernel of a recurrence that multiplies its state with a matrix at every step.
//
// A block owns R segments and walks through time; its THREADS threads own C channels each (C THREADS >= H). They meet at
// barriers, and what the next product needs of other channels goes through shared memory. Neighbouring threads read
// neighbouring numbers everywhere.
//
// A product has D inputs, N = ceil(D / U) chunks of U; G weights of each input for each channel. Weights come from far
// away, so those of the next chunk are on their way while one is used. Blocks begin at different chunks, or all would
// want the same line of a cache at the same time. A thread without a channel of its own repeats the last one and stores
// nothing.
//
// sizes: T, S; how far a channel's first state is from the next one's, and a segment's `keep` from the next one's: 1, or
// 0 where one number is all of them.
  int T = sizes[0];
  uint S = sizes[1], first_step = sizes[2], keep_step = sizes[3];
  float ahead[U][G];
  uint first = block * R, at = block % N * U;
  uint start = me < H ? me : H - 1;
#define CHANNEL start
#include "recurrence/load.metal.h"
