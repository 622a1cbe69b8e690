// Part of a kernel: the product of ROWS (D of them) with this channel's weights, added to SUMS of weight v / R, segment
// v % R.
#pragma unroll 2
      for (int n = 0; n < N; ++n) {
        float w[U][G];
#pragma unroll
        for (int v = 0; v < U * G; ++v) w[v / G][v % G] = ahead[v / G][v % G];
        uint now = at, from = n + 1 < N ? channel : next;
        at = at + U < N * U ? at + U : 0;
#define CHANNEL from
#include "recurrence/load.metal.h"
#pragma unroll
        for (int u = 0; u < U; ++u) {
          Rows<R> rows = ROWS[now + u];
#pragma unroll
          for (int v = 0; v < G * R; ++v) SUMS += w[u][v / R] * rows.of[v % R];
        }
      }
#undef ROWS
#undef SUMS
