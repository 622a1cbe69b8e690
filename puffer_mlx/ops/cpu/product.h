// Matrix products for recurrences: rows times a matrix that is the same at every step. The matrix is packed once, a tile of sums
// stays in registers, and an epilogue uses the sums there. A BLAS would pack the matrix at every step and store the sums to memory.

#pragma once

#include "arithmetic.h"

namespace puffer {

constexpr int kSums = kRegisters == 32 ? 24 : 12;  // registers for sums; the others hold the two factors

// A matrix with `depth` rows, stored as panels of V vectors in the order (panel, row, vector, lane). Missing columns are 0.
template <int V>
struct Packed {
  int depth, panels;
  std::vector<Lanes> values;

  // `column(panel, v, lane)` returns the address of a column's first element, or null if there is no column. stride: distance of a
  // column's elements.
  template <class Column>
  Packed(int depth, int panels, int64_t stride, Column column)
      : depth(depth), panels(panels), values(size_t(panels) * depth * V) {
    for (int i = 0; i < panels * V * kLanes; ++i) {
      int panel = i / (V * kLanes), v = i / kLanes % V, lane = i % kLanes;
      const float* from = column(panel, v, lane);
      float* to = reinterpret_cast<float*>(&values[size_t(panel) * depth * V + v]) + lane;
      for (int k = 0; from && k < depth; ++k) to[size_t(k) * V * kLanes] = from[k * stride];
    }
  }
};

// Pack the rows of `weight` (V H, H), which has V gates of H rows, as columns: a panel holds kLanes channels of each gate.
template <int V>
Packed<V> pack_parts(const float* weight, int H) {
  return {H, (H + kLanes - 1) / kLanes, 1, [=](int panel, int part, int lane) -> const float* {
            int channel = panel * kLanes + lane;
            return channel < H ? weight + (int64_t(part) * H + channel) * H : nullptr;
          }};
}

// Pack the columns of `weight` (M, H): a panel holds V kLanes channels.
template <int V>
Packed<V> pack_columns(const float* weight, int M, int H) {
  return {M, (H + V * kLanes - 1) / (V * kLanes), H, [=](int panel, int v, int lane) -> const float* {
            int channel = (panel * V + v) * kLanes + lane;
            return channel < H ? weight + channel : nullptr;
          }};
}

// Rows per tile of sums.
template <int V>
constexpr int kTileRows = kSums / V;

// Multiply rows [begin, end) by a matrix. Calls epilogue(row, panel, sums) for each row and panel; sums: V vectors of the product.
// row_of(row): the row's numbers; depth: the matrix's depth, or 0 for sums of 0 without reading any row.
template <int V, class RowOf, class Epilogue>
inline void multiply_rows(int begin, int end, const Packed<V>& matrix, int depth, RowOf row_of, Epilogue epilogue) {
  constexpr int R = kTileRows<V>;
  for (int first = begin; first < end; first += R) {
    const float* rows[R];
    for (int r = 0; r < R; ++r) rows[r] = row_of(std::min(first + r, end - 1));
    for (int panel = 0; panel < matrix.panels; ++panel) {
      const Lanes* values = matrix.values.data() + size_t(panel) * matrix.depth * V;
      Lanes sums[R][V] = {};
      for (int k = 0; k < depth; ++k, values += V) {
        for (int r = 0; r < R; ++r)
          for (int v = 0; v < V; ++v) sums[r][v] += rows[r][k] * values[v];
      }
      for (int r = 0; r < std::min(R, end - first); ++r) {
        Lanes copied[V];  // without the copy, clang stores all sums in memory
        std::copy_n(sums[r], V, copied);
        epilogue(first + r, panel, copied);
      }
    }
  }
}

}  // namespace puffer
