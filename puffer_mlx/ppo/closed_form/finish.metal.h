// The metrics, in the order of METRICS in ppo/loss.py, of the first ROWS of the blocks' sums.
  float sums[ROWS];
#pragma unroll
  for (uint row = 0; row < ROWS; ++row) {
    float sum = 0.0f;
    for (uint b = me; b < blocks_of(n); b += 256u) sum += partial[row * blocks_of(n) + b];
    sums[row] = block_sum(sum, part, me, 256) / (float)n;
  }
  if (me == 0) {
    float loss = sums[0] + settings[3] * (0.5f * sums[1]) - ent_coef[0] * (ENTROPY);
    total[0] = loss * scale[0];
    metrics[0] = sums[0];
    metrics[1] = 0.5f * sums[1];
    metrics[2] = ENTROPY;
    metrics[3] = loss;
    metrics[4] = sums[2];
    metrics[5] = sums[3];
    metrics[6] = sums[4];
  }
