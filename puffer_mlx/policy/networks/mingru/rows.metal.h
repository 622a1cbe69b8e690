// MinGRU on matrix units, many rows at a time: the gates, also for training, and the steps of a rollout. Equations: cell.h.

#pragma once

#include "cell.h"
#include "gpu/matrix.metal.h"

// Compute a MinGRU layer's gates u from its input x and its transposed weight, by matrix units: g - 0.5, z and q, each H wide. The
// sign of g - 0.5 is the sign of `hidden`, which the gradient needs, also in 16 bits. 32 threads compute all three gates of a tile
// (16, 8).
template <int EXACT, int H, int M, int THREADS, class Input, class Weight, class Gates>
FUNCTION void make_gates(Input x, Weight weight, Gates u, uint me) {
  constexpr uint ACROSS = H / 8, ITEMS = M / 16 * ACROSS;
  for (uint item = me / 32; item < ITEMS; item += THREADS / 32) {
    uint row = item / ACROSS * 16, column = item % ACROSS * 8;
    float sums[1][3][4];
    clear(sums);
    add_product<EXACT, H, 1, 3, H>(x, row, weight, column, me, sums);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      uint r = row + row_of(v, me), c = column + column_of(v, me);
      MinGRUGates<float> gates = mingru_gates(sums[0][0][v], sums[0][1][v], sums[0][2][v]);
      u.put(r, c, gates.g - 0.5f);
      u.put(r, c + H, gates.z);
      u.put(r, c + 2 * H, gates.q);
    }
  }
}

// Copy a tile (ROWS, COLUMNS) of a matrix with rows of ACROSS elements from device memory to shared memory.
template <int ROWS, int COLUMNS, int ACROSS, int THREADS, class Low>
FUNCTION void fetch_tile(IN_DEVICE const Low* from, Swizzled<Low, COLUMNS> tile, uint me) {
  constexpr uint WIDTH = 16 / sizeof(Low), LINES = COLUMNS / WIDTH;
  for (uint k = me; k < ROWS * LINES; k += THREADS) {
    uint row = k / LINES, column = k % LINES * WIDTH;
    copy_line(from + row * ACROSS + column, tile.numbers + tile.place(row, column));
  }
}

// Compute a MinGRU layer's gates as make_gates does, but with a 16-bit weight (3H, H) in device memory. Two buffers for its tiles
// (H, 64) alternate: one is filled while the other is used.
template <int H, int M, int THREADS, class Low>
FUNCTION void stream_gates(Swizzled<Low, H> x, IN_DEVICE const Low* weight, Swizzled<Low, 3 * H> u, IN_SHARED Low* place0,
                           IN_SHARED Low* place1, uint me) {
  constexpr int R = M > 16 ? 2 : 1, ACROSS = THREADS / 32 / (M / 16 / R);  // groups of 32 threads per row of tiles
  constexpr int TILES = H / 8 / ACROSS, EACH = H / 64;  // tiles of 8 columns per 32 threads; chunks of a gate
  static_assert(TILES * 8 * ACROSS == H && EACH * 64 == H, "the threads must divide H");
  uint row = me / (32 * ACROSS) * (16 * R), column = me / 32 % ACROSS * (8 * TILES);
  float sums[R][TILES][4];
  fetch_tile<H, 64, H, THREADS>(weight, Swizzled<Low, 64>{place0}, me);
  END_OF_COPIES
  for (int n = 0; n < 3 * EACH; ++n) {
    int next = n + 1, chunk = n % EACH, gate = n / EACH;
    WAIT_FOR_COPIES(0)
    BARRIER
    if (next < 3 * EACH)
      fetch_tile<H, 64, H, THREADS>(weight + next / EACH * (H * H) + next % EACH * 64, Swizzled<Low, 64>{next % 2 ? place1 : place0}, me);
    END_OF_COPIES
    if (chunk == 0) clear(sums);
    Swizzled<Low, H> left = {x.numbers + chunk * 64};
    Swizzled<Low, 64> tile = {n % 2 ? place1 : place0};
    add_product<0, 64, R, TILES, 8>(left, row, transposed(tile), column, me, sums);
    if (chunk == EACH - 1) {
#pragma unroll
      for (int v = 0; v < 4 * R * TILES; v += 2) {
        float y[2];
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          float product = sums[v / (4 * TILES)][v / 4 % TILES][v % 4 + w];
          MinGRUGates<float> gates = mingru_gates(product, product, product);
          y[w] = gate == 0 ? gates.g - 0.5f : gates.z;
        }
        uint r = row + (uint)(v / (4 * TILES)) * 16 + row_of(v % 4, me), c = column + (uint)(v / 4 % TILES) * 8 + column_of(v % 4, me);
        put_pair<Low>(u.numbers + u.place(r, c + (uint)(gate * H)), y[0], y[1]);
      }
    }
  }
  BARRIER
}

// Compute a MinGRU layer's gates, complete for all threads on return. The weight is transposed in shared memory, or, if STREAMED,
// in device memory; it is then read through the buffers `places` (2, H, 64).
template <int STREAMED>
struct GatesOf {
  template <int EXACT, int H, int M, int THREADS, class Low, class Weight>
  FUNCTION static void rows(Swizzled<Low, H> x, Weight weight, IN_DEVICE const Low*, IN_SHARED Low*, Swizzled<Low, 3 * H> u, uint me) {
    make_gates<EXACT, H, M, THREADS>(x, weight, u, me);
    BARRIER
  }
};
template <> struct GatesOf<1> {
  template <int EXACT, int H, int M, int THREADS, class Low, class Weight>
  FUNCTION static void rows(Swizzled<Low, H> x, Weight, IN_DEVICE const Low* from, IN_SHARED Low* places, Swizzled<Low, 3 * H> u, uint me) {
    stream_gates<H, M, THREADS>(x, from, u, places, places + H * 64, me);
  }
};

// Compute one step of a MinGRU layer for M rows from its gates u: reads the input x, writes the output and updates the states. The
// output uses the state rounded to Low, as in training.
template <int H, int M, int THREADS, class Features, class Gates>
FUNCTION void step_rows(Features x, Features out, Gates u, IN_SHARED float* states, IN_SHARED const float* not_done, uint me) {
  for (uint k = me; k < M * H; k += THREADS) {
    uint row = k / H, channel = k % H;
    float state = mingru_state(u.at(row, channel + H), u.at(row, channel) + 0.5f, not_done[row] * states[k]);
    states[k] = state;
    out.put(row, channel, mingru_out(u.at(row, channel + 2 * H), x.at(row, channel), out.rounded(state)));
  }
}
