// Sums over all threads of a block, in a fixed order.

#pragma once

// Return the sum of x over all threads of a block. All of them must call this. part: scratch memory, one number per thread; threads:
// number of threads in the block, a power of two.
FUNCTION float block_sum(float x, IN_SHARED float* part, uint me, uint threads) {
  BARRIER  // other threads may still read the previous sum
  part[me] = x;
  for (uint half_of = threads / 2; half_of > 0; half_of /= 2) {
    BARRIER
    if (me < half_of) part[me] += part[me + half_of];
  }
  BARRIER
  return part[0];
}

// Replace each of the COUNT numbers x by its sum over all threads, as `block_sum`. part: scratch memory, COUNT numbers per thread.
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
