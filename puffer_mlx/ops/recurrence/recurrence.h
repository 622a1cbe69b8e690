// Code shared by recurrent layers that multiply their state by a matrix at every step, on a CPU.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/cpu/product.h"
#include "ops/cpu/threads.h"
#include "ops/linear/linear.h"

namespace puffer {

// Return the gradient of a recurrent weight: dW (M, H) = sum over t and s of dy_ts (not_done_ts h_(t-1)s), with `first` instead of h
// at t = 0. dy (T, S, M), states h (T, S, H), first (S, H), not_done (T, S).
inline Array recurrent_weight_gradient(const Array& dy, const Array& states, const Array& first, const Array& not_done) {
  expect(gemm != nullptr, "recurrent_weight_gradient: no BLAS is set");
  expect(dy.ndim() == 3 && states.ndim() == 3, "recurrent_weight_gradient: dy (T, S, M), states (T, S, H)");
  int T = states.shape(0), S = states.shape(1), H = states.shape(2), M = dy.shape(2);
  expect_shapes("recurrent_weight_gradient",
                {{dy, {T, S, M}}, {states, {T, S, H}}, {first, {S, H}}, {not_done, {T, S}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto d = floats(in, 0), h = floats(in, 1), h0 = floats(in, 2), factors = floats(in, 3);
    sum_products(T * S, size_t(M) * H, floats(to, 0), [=](int begin, int count, float beta, float* out) {
      std::vector<float> before(size_t(count) * H);
      auto prepare = [&, begin](int first, int end) {
        for (int i = first; i < end; ++i) {
          int k = begin + i;
          auto from = k < S ? h0 + int64_t(k) * H : h + int64_t(k - S) * H;
          for (int j = 0; j < H; ++j) before[size_t(i) * H + j] = factors[k] * from[j];
        }
      };
      if (gemm_splits)
        prepare(0, count);
      else
        over_rows(count, 1, prepare);
      gemm(kRowMajor, kTransposed, kAsIs, M, H, count, 1, d + int64_t(begin) * M, M, before.data(), H, beta, out, H);
    });
  };
  return call("RecurrentWeightGradient", kernel, {dy, states, first, not_done}, {mx::Shape{M, H}})[0];
}

// Call row(t, k, s, at, sums) for each of T steps of S segments, in order of time. k = t S + s; at: channels; sums: the product of
// weight_hh (Z H, H) with the previous state, one vector for each of Z gates. The previous state is h0 at t = 0, else a row of h,
// which `row` writes.
template <int Z, class Row>
inline void walk_forward(int T, int S, int H, const float* weight_hh, const float* h0, const float* h, Row row) {
  auto panels = pack_parts<Z>(weight_hh, H);
  auto walk = [=, &panels](int begin, int end) {
    for (int t = 0; t < T; ++t) {
      auto step = int64_t(t) * S;
      auto before = t ? h + (step - S) * H : h0;
      auto row_of = [=](int s) { return before + int64_t(s) * H; };
      multiply_rows(begin, end, panels, H, row_of, [=](int s, int panel, const Lanes* sums) {
        row(t, step + s, s, Channels(panel * kLanes, H), sums);
      });
    }
  };
  over_rows(S, T, walk, kTileRows<Z>);
}

// Call row(t, k, s, at, sum, factor) for each step backward in time, then last(s, at, sum) for t = -1. sum: product of weight_hh with
// the gradient of step t + 1, a row of d (T, S, Z H), which `row` writes; factor: `not_done` of step t + 1, which multiplies sum, 0
// at the last step. carry (S, H) is set to 0 first.
template <int Z, class Row, class Last>
inline void walk_backward(int T, int S, int H, const float* weight_hh, const float* d, const float* not_done, float* carry,
                          Row row, Last last) {
  constexpr int V = 4;
  auto panels = pack_columns<V>(weight_hh, Z * H, H);
  auto walk = [=, &panels](int begin, int end) {
    std::memset(carry + int64_t(begin) * H, 0, sizeof(float) * int64_t(end - begin) * H);
    for (int t = T - 1; t >= -1; --t) {
      auto step = int64_t(t) * S;
      bool ends = t == T - 1;
      auto row_of = [=](int s) { return d + (step + (ends ? 0 : S) + s) * Z * H; };
      multiply_rows(begin, end, panels, ends ? 0 : Z * H, row_of, [=](int s, int panel, const Lanes* sums) {
        float factor = ends ? 0.0f : not_done[step + s + S];
        for (int v = 0; v < V && (panel * V + v) * kLanes < H; ++v) {
          Channels at((panel * V + v) * kLanes, H);
          if (t >= 0)
            row(t, step + s, s, at, sums[v], factor);
          else
            last(s, at, sums[v]);
        }
      });
    }
  };
  over_rows(S, T, walk, kTileRows<V>);
}

OPERATION(recurrent_weight_gradient);

}  // namespace puffer
