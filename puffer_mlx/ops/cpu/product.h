// Products of rows with a shared matrix, for recurrences. The matrix is packed once, a tile of sums stays in registers, and an
// epilogue consumes the sums there. A BLAS would pack the matrix at every step and pass the sums through memory.

#pragma once

#include "arithmetic.h"

namespace puffer {

constexpr int kSums = kRegisters == 32 ? 24 : 12;  // registers for sums; others hold the two factors

// A matrix of `depth` rows as panels of V vectors (panel, row, vector, lane); 0 where it has no column.
template <int V>
struct Packed {
  int depth, panels;
  std::vector<Lanes> values;

  // `column(panel, v, lane)` points to a column's first element, its elements `stride` apart; null: no column.
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

// Columns are the rows of `weight` (V H, H), its V parts side by side: a panel holds kLanes channels of each part.
template <int V>
Packed<V> pack_parts(const float* weight, int H) {
  return {H, (H + kLanes - 1) / kLanes, 1, [=](int panel, int part, int lane) -> const float* {
            int channel = panel * kLanes + lane;
            return channel < H ? weight + (int64_t(part) * H + channel) * H : nullptr;
          }};
}

// Columns are those of `weight` (M, H): a panel holds V kLanes channels.
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

// For rows [begin, end) and each panel: epilogue(row, panel, the V vectors of the product of the row at `row_of(row)`).
// `depth` is the matrix's, or 0 for sums of 0, which read no row.
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
        Lanes copied[V];  // a copy, or clang would keep all sums in memory
        std::copy_n(sums[r], V, copied);
        epilogue(first + r, panel, copied);
      }
    }
  }
}

}  // namespace puffer
