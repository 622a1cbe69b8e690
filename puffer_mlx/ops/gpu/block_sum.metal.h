// Sums over a block, in an order that doesn't depend on when its threads arrive.

#pragma once

// The sum of x of all threads of a block, for each of them. `part` has room for one number of each; `threads`, how many
// they are, is a power of two. All of them call this.
FUNCTION float block_sum(float x, IN_SHARED float* part, uint me, uint threads) {
  BARRIER  // whoever still reads the sum before
  part[me] = x;
  for (uint half_of = threads / 2; half_of > 0; half_of /= 2) {
    BARRIER
    if (me < half_of) part[me] += part[me + half_of];
  }
  BARRIER
  return part[0];
}
