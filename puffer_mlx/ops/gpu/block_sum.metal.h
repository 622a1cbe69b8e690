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

// COUNT such sums in the place of x, each in the same order; `part` has room for COUNT numbers of each thread.
template <int COUNT>
FUNCTION void block_sums(IN_THREAD float* x, IN_SHARED float* part, uint me, uint threads) {
  BARRIER
#pragma unroll
  for (int k = 0; k < COUNT; ++k) part[(uint)k * threads + me] = x[k];
  for (uint half_of = threads / 2; half_of > 0; half_of /= 2) {
    BARRIER
#pragma unroll
    for (int k = 0; k < COUNT; ++k)
      if (me < half_of) part[(uint)k * threads + me] += part[(uint)k * threads + me + half_of];
  }
  BARRIER
#pragma unroll
  for (int k = 0; k < COUNT; ++k) x[k] = part[(uint)k * threads];
}
