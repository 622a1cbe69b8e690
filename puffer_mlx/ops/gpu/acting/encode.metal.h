// First part of a step: the encoder's features of the observations, whose row `observed` is that of the block's first agent;
// with SEATS those that PLACE says.
  IN_SHARED Rows<R>* x = features;   // (GROUPS, H), a layer's input
  IN_SHARED Rows<R>* y = x + units;  // (GROUPS, H), its output; a part of the observations before
  for (uint from = 0; from < D; from += chunk) {
    uint width = D - from < chunk ? D - from : chunk, numbers = width * R * GROUPS;
    BARRIER  // the part before has been read
    for (uint start = me; start < numbers; start += 8 * THREADS) {
      float part[8];  // on their way together: they may come from the host
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = k / width;
        bool in = k < numbers && first + agent < n;
        part[v] = in ? (float)observations[(SEATS > 0 ? PLACE(agent) : observed + agent) * D + from + k % width] : 0.0f;
      }
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = k / width;
        if (k >= numbers) continue;
        y[agent / R * width + k % width].of[agent % R] = part[v];
        if (sizes[11] > 0 && first + agent < n) WRITTEN(Low, seen)[PLACE(agent) * D + from + k % width] = (Low)part[v];
      }
    }
    BARRIER
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H;
      Sums<1, R> sums = multiply<1, R>(encoder + from * H + channel, 0, H, y + unit / H * width, width);
      bool activated = sizes[8] > 0 && from + chunk >= D;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float feature = (from > 0 ? x[unit].of[r] : encoder[D * H + channel]) + sums.of[0][r];
        x[unit].of[r] = activated ? gelu(feature) : feature;
      }
    }
  }
  BARRIER
