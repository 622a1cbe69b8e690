// How a kernel of the loss ends: the block's sums.
#pragma unroll
  for (int row = 0; row < 5; ++row) {
    float sum = block_sum(sums[row], part, me, 256);
    if (me == 0) partial[(uint)row * blocks_of(n) + block] = sum;
  }
