// First part of a kernel that acts: sizes, and the encoder's features in x. What is behind the features is the network's
// own, from `own` on.
  SHARED Rows<R> room[ROOM];
  uint D = (uint)sizes[0], H = (uint)sizes[1], L = (uint)sizes[2], A = (uint)sizes[3], heads = (uint)sizes[4];
  uint n = (uint)sizes[5], chunk = (uint)sizes[6];
  uint first = block * R * GROUPS, units = H * GROUPS;
  IN_SHARED Rows<R>* outputs = room;                // (GROUPS, A + 1)
  IN_SHARED Rows<R>* x = outputs + (A + 1) * GROUPS;  // (GROUPS, H), a layer's input
  IN_SHARED Rows<R>* y = x + units;                 // (GROUPS, H), its output; a part of the observations before
  IN_SHARED Rows<R>* own = y + (chunk > H ? chunk : H) * GROUPS;
  IN_DEVICE const float* decoder = weights + (D + 1) * H;
  IN_DEVICE const float* logstd = decoder + (H + 1) * (A + 1);
  IN_DEVICE const float* network = logstd + heads;
  for (uint from = 0; from < D; from += chunk) {
    uint width = D - from < chunk ? D - from : chunk, numbers = width * R * GROUPS;
    BARRIER  // the part before has been read
    for (uint start = me; start < numbers; start += 8 * THREADS) {
      float part[8];  // on their way together: they may come from the host
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = first + k / width;
        part[v] = k < numbers && agent < n ? (float)observations[agent * D + from + k % width] : 0.0f;
      }
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        uint k = start + v * THREADS, agent = k / width;
        if (k >= numbers) continue;
        y[agent / R * width + k % width].of[agent % R] = part[v];
        if (sizes[11] > 0 && first + agent < n) WRITTEN(Low, seen)[(first + agent) * D + from + k % width] = (Low)part[v];
      }
    }
    BARRIER
    for (uint unit = me; unit < units; unit += THREADS) {
      uint channel = unit % H;
      Sums<1, R> sums = multiply<1, R>(weights + from * H + channel, 0, H, y + unit / H * width, width);
      bool activated = sizes[8] > 0 && from + chunk >= D;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float feature = (from > 0 ? x[unit].of[r] : weights[D * H + channel]) + sums.of[0][r];
        x[unit].of[r] = activated ? gelu(feature) : feature;
      }
    }
  }
  BARRIER
