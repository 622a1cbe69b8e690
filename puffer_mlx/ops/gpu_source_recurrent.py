"""The texts of the GPU kernels of LSTM and GRU: see ``gpu_source.py``.

Their state is multiplied with a matrix at every step. A block owns R segments and walks through
time; its THREADS threads own C channels each (C THREADS >= H). They meet at barriers, and what the
next product needs of other channels goes through shared memory. Neighbouring threads read
neighbouring numbers everywhere.

Shapes, and what is computed: ``csrc/lstm.h``, ``csrc/gru.h``.
"""

# A product has D inputs, N = ceil(D / U) chunks of U; G weights of each input for each channel.
# Weights come from far away, so those of the next chunk are on their way while one is used. Blocks
# begin at different chunks, or all would want the same line of a cache at the same time. A thread
# without a channel of its own repeats the last one and stores nothing.
_LOAD = r"""
#pragma unroll
        for (int v = 0; v < U * G; ++v) {
          uint input = at + v / G;
          input = D % U == 0 || input < D ? input : D - 1;  // beyond D, what it meets is 0
          ahead[v / G][v % G] = (float)weight[(input * G + v % G) * H + CHANNEL];
        }
"""
_START = r"""
  float ahead[U][G];
  uint first = block * R, at = block % N * U;
  uint start = me < H ? me : H - 1;
""" + _LOAD.replace("CHANNEL", "start")
_CHANNEL = r"""
      uint channel = me + c_ * THREADS, next = me + (c_ + 1) % C * THREADS;
      bool mine = channel < H;
      channel = mine ? channel : H - 1;
      next = next < H ? next : H - 1;
"""
_PRODUCT = (
    r"""
#pragma unroll 2
      for (int n = 0; n < N; ++n) {
        float w[U][G];
#pragma unroll
        for (int v = 0; v < U * G; ++v) w[v / G][v % G] = ahead[v / G][v % G];
        uint now = at, from = n + 1 < N ? channel : next;
        at = at + U < N * U ? at + U : 0;
"""
    + _LOAD.replace("CHANNEL", "from")
    + r"""
#pragma unroll
        for (int u = 0; u < U; ++u) {
          Rows<R> rows = ROWS[now + u];
#pragma unroll
          for (int v = 0; v < G * R; ++v) SUMS += w[u][v / R] * rows.of[v % R];
        }
      }
"""
)
# All of a step's numbers are read before any is stored: for all that the compiler knows, a store
# may change what is read after it, and every segment would wait for memory anew.
_KEPT = r"""
      float kept[R];  // of the next step
#pragma unroll
      for (int r = 0; r < R; ++r) {
        uint s = first + r;
        kept[r] = s < S && t + 1 < T ? keep[(t + 1) * S + s] : 0.0f;
      }
"""
_FORWARD_PRODUCT = _KEPT + _PRODUCT.replace("ROWS", "before[t & 1]").replace(
    "SUMS", "sums[v / R][v % R]"
)
_BACKWARD_PRODUCT = _PRODUCT.replace("ROWS", "after").replace("SUMS", "sums[c_][v]")

_READ = r"""
      uint row = t * S + first;
      float saved[4][R], gradient[R], states[R], kept[R], after_keep[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        bool in = first + r < S;
        uint k = (row + r) * H + channel;
        gradient[r] = in ? dh[k] : 0.0f;
        states[r] = !in ? 0.0f : t > 0 ? STATES[k - S * H] : FIRST[k];
        kept[r] = in ? keep[row + r] : 0.0f;
        after_keep[r] = in && t < T - 1 ? keep[row + r + S] : 0.0f;
#pragma unroll
        for (int gate = 0; gate < 4; ++gate)
          saved[gate][r] = in ? (float)gates[((row + r) * 4 + gate) * H + channel] : 0.0f;
      }
"""
_FORWARD_START = (
    _START
    + r"""
  SHARED Rows<R> before[2][N * U];  // keep h of the step before; two, so that one barrier does
  for (uint k = me; k < N * U; k += THREADS) {
    for (int r = 0; r < R; ++r) {
      uint s = first + r;
      before[0][k].of[r] = s < S && k < H ? keep[s] * h0[s * H + k] : 0.0f;
      before[1][k].of[r] = 0.0f;
    }
  }
"""
)
_BACKWARD_START = (
    _START
    + r"""
  SHARED Rows<R> after[N * U];  // gradient by the products of the step after
  float carry[C][R], sums[C][R];
#pragma unroll
  for (int v = 0; v < C * R; ++v) carry[v / R][v % R] = 0.0f;
  for (uint k = me; k < N * U; k += THREADS) {
    for (int r = 0; r < R; ++r) after[k].of[r] = 0.0f;
  }
"""
)

# z, weight (H, 4H; transposed), h0, c0, keep -> h, c, gates
LSTM_FORWARD = (
    _FORWARD_START
    + r"""
  float cells[C][R];  // keep c of the step before
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R;
    cells[v / R][v % R] = channel < H && s < S ? keep[s] * c0[s * H + channel] : 0.0f;
  }
  BARRIER
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
"""
    + _CHANNEL
    + r"""
      float sums[4][R];
#pragma unroll
      for (int v = 0; v < 4 * R; ++v) {
        uint s = first + v % R;
        sums[v / R][v % R] = s < S ? (float)z[((t * S + s) * 4 + v / R) * H + channel] : 0.0f;
      }
"""
    + _FORWARD_PRODUCT
    + r"""
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        uint row = t * S + first + r, j = row * 4 * H + channel;
        float input = logistic(sums[0][r]), forget = logistic(sums[1][r]);
        float g = squash(sums[2][r]), o = logistic(sums[3][r]);
        float cell = forget * cells[c_][r] + input * g, out = o * squash(cell);
        gates[j] = (Low)input; gates[j + H] = (Low)forget;
        gates[j + 2 * H] = (Low)g; gates[j + 3 * H] = (Low)o;
        c[row * H + channel] = cell;
        h[row * H + channel] = out;
        cells[c_][r] = kept[r] * cell;
        before[(t + 1) & 1][channel].of[r] = kept[r] * out;
      }
    }
    BARRIER
  }
"""
)

# z, weight (H, 3H; transposed), bias, h0, keep -> h, gates
GRU_FORWARD = (
    _FORWARD_START
    + r"""
  BARRIER
  for (int t = 0; t < T; ++t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
"""
    + _CHANNEL
    + r"""
      float sums[3][R], inputs[3][R];
#pragma unroll
      for (int v = 0; v < 3 * R; ++v) {
        uint s = first + v % R;
        sums[v / R][v % R] = (float)bias[v / R * H + channel];
        inputs[v / R][v % R] = s < S ? (float)z[((t * S + s) * 3 + v / R) * H + channel] : 0.0f;
      }
"""
    + _FORWARD_PRODUCT
    + r"""
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        uint row = t * S + first + r, j = row * 4 * H + channel;
        float reset = logistic(inputs[0][r] + sums[0][r]), hidden = sums[2][r];
        float u = logistic(inputs[1][r] + sums[1][r]), n = squash(inputs[2][r] + reset * hidden);
        float out = n + u * (before[t & 1][channel].of[r] - n);
        gates[j] = (Low)reset; gates[j + H] = (Low)u;
        gates[j + 2 * H] = (Low)n; gates[j + 3 * H] = (Low)hidden;
        h[row * H + channel] = out;
        before[(t + 1) & 1][channel].of[r] = kept[r] * out;
      }
    }
    BARRIER
  }
"""
)

# gates, weight (4H, H), c0, keep, c, dh -> dz, dh0, dc0
LSTM_BACKWARD = (
    _BACKWARD_START
    + r"""
  for (int t = T - 1; t >= -1; --t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
"""
    + _CHANNEL
    + r"""
#pragma unroll
      for (int r = 0; r < R; ++r) sums[c_][r] = 0.0f;
      if (t == T - 1) continue;
"""
    + _BACKWARD_PRODUCT
    + r"""
    }
    BARRIER  // all have read `after`
    if (t < 0) break;
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
"""
    + _CHANNEL
    + _READ.replace("STATES", "c").replace("FIRST", "c0")
    + r"""
      float cells[R];
#pragma unroll
      for (int r = 0; r < R; ++r) cells[r] = first + r < S ? c[(row + r) * H + channel] : 0.0f;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        float input = saved[0][r], forget = saved[1][r], g = saved[2][r], o = saved[3][r];
        float d = gradient[r] + after_keep[r] * sums[c_][r], out = squash(cells[r]);
        float dc = carry[c_][r] + d * o * (1.0f - out * out), cell = kept[r] * states[r];
        float parts[4] = {dc * g * input * (1.0f - input), dc * cell * forget * (1.0f - forget),
                          dc * input * (1.0f - g * g), d * out * o * (1.0f - o)};
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
          dz[((row + r) * 4 + gate) * H + channel] = (Low)parts[gate];
          after[gate * H + channel].of[r] = parts[gate];
        }
        carry[c_][r] = kept[r] * forget * dc;
      }
    }
    BARRIER
  }
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R;
    if (channel >= H || s >= S) continue;
    dh0[s * H + channel] = keep[s] * sums[v / R][v % R];
    dc0[s * H + channel] = carry[v / R][v % R];
  }
"""
)

# gates, weight (3H, H), h0, keep, h, dh -> dz, dhidden, dh0
GRU_BACKWARD = (
    _BACKWARD_START
    + r"""
  for (int t = T - 1; t >= -1; --t) {
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
"""
    + _CHANNEL
    + r"""
#pragma unroll
      for (int r = 0; r < R; ++r) sums[c_][r] = carry[c_][r];
      if (t == T - 1) continue;
"""
    + _BACKWARD_PRODUCT
    + r"""
    }
    BARRIER  // all have read `after`
    if (t < 0) break;
#pragma unroll
    for (int c_ = 0; c_ < C; ++c_) {
"""
    + _CHANNEL
    + _READ.replace("STATES", "h").replace("FIRST", "h0")
    + r"""
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (!mine || first + r >= S) continue;
        float reset = saved[0][r], u = saved[1][r], n = saved[2][r];
        float d = gradient[r] + after_keep[r] * sums[c_][r];
        float dn = d * (1.0f - u) * (1.0f - n * n);
        float parts[3] = {dn * saved[3][r] * reset * (1.0f - reset),
                          d * (kept[r] * states[r] - n) * u * (1.0f - u), dn * reset};
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          uint to = ((row + r) * 3 + gate) * H + channel;
          dz[to] = (Low)(gate < 2 ? parts[gate] : dn);
          dhidden[to] = (Low)parts[gate];
          after[gate * H + channel].of[r] = parts[gate];
        }
        carry[c_][r] = d * u;
      }
    }
    BARRIER
  }
#pragma unroll
  for (int v = 0; v < C * R; ++v) {
    uint channel = me + v / R * THREADS, s = first + v % R;
    if (channel < H && s < S) dh0[s * H + channel] = keep[s] * sums[v / R][v % R];
  }
"""
)
