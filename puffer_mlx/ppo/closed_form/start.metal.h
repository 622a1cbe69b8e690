// How a kernel of the loss begins: the advantages' mean, and their deviation, unbiased, unless they count as they are.
  SHARED float part[256];
  uint n = (uint)shape[0], A = (uint)shape[1], G = (uint)shape[2], R = (uint)shape[3];
  bool live = G == 0;
  float mean = 0.0f, deviation = 1.0f;
  if (!live) {
    float total = 0.0f, squares = 0.0f, all = (float)n * (float)R;
    for (uint k = me; k < R * G; k += 256u) {
      uint at = k / G * 3u * G + k % G;
      total += moments[at] * moments[at + G];
    }
    mean = block_sum(total, part, me, 256) / all;
    for (uint k = me; k < R * G; k += 256u) {
      uint at = k / G * 3u * G + k % G;
      float away = moments[at + G] - mean;
      squares += moments[at + 2u * G] + moments[at] * away * away;
    }
    deviation = sqrt(block_sum(squares, part, me, 256) / (all - 1.0f));
  }
  float sums[5];  // policy, twice value, old_kl, kl, clipfrac
#pragma unroll
  for (int row = 0; row < 5; ++row) sums[row] = 0.0f;
