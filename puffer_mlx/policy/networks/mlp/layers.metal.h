// The MLP's layers as a part of a step: x becomes their output. A layer's weight (H, H), then its bias (H,).
  if (block == 0 && me < 8) after[me] = 0.0f;  // there is no state
  for (uint layer = 0; layer < L; ++layer) {
    IN_DEVICE const float* weight = network + layer * (H + 1) * H;
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H;
      Sums<1, R> sums = multiply<1, R>(weight + channel, 0, H, x + unit - channel, H);
#pragma unroll
      for (int r = 0; r < R; ++r) y[unit].of[r] = gelu(weight[H * H + channel] + sums.of[0][r]);
    }
    BARRIER
    IN_SHARED Rows<R>* other = x;
    x = y;
    y = other;
  }
