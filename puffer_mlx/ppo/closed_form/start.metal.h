// How a kernel of the loss begins: the advantages' mean, and their deviation, unbiased, unless they count as they are.
  SHARED float part[256];
  uint n = (uint)shape[0], A = (uint)shape[1], G = (uint)shape[2];
  bool live = G == 0;
  float mean = 0.0f, deviation = 1.0f;
  if (!live) {
    float count = me < G ? moments[me] : 0.0f, own_mean = me < G ? moments[G + me] : 0.0f;
    mean = block_sum(count * own_mean, part, me, 256) / (float)n;
    float squares = me < G ? moments[2u * G + me] + count * (own_mean - mean) * (own_mean - mean) : 0.0f;
    deviation = sqrt(block_sum(squares, part, me, 256) / ((float)n - 1.0f));
  }
  float by_logprob = 0.0f;
  float sums[5];  // policy, twice value, old_kl, kl, clipfrac
#pragma unroll
  for (int row = 0; row < 5; ++row) sums[row] = 0.0f;
