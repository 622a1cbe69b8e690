// What recurrences share that multiply their state with a matrix at every step.

#pragma once

#include <cstdint>
#include <vector>

#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"
#include "ops/linear/linear.h"

namespace puffer {

// dW (M, H) = sum over t and s of dy_ts times keep_ts h_(t-1)s, the latter `first` at t = 0: a recurrent weight's
// gradient. dy (T, S, M), states h (T, S, H), first (S, H), keep (T, S)
inline Array recurrent_weight_gradient(const Array& dy, const Array& states, const Array& first, const Array& keep) {
  expect(gemm != nullptr, "recurrent_weight_gradient: no BLAS is set");
  expect(dy.ndim() == 3 && states.ndim() == 3, "recurrent_weight_gradient: dy (T, S, M), states (T, S, H)");
  int T = states.shape(0), S = states.shape(1), H = states.shape(2), M = dy.shape(2);
  expect_shapes("recurrent_weight_gradient: dy (T, S, M), states (T, S, H), first (S, H), keep (T, S) don't agree",
                {{dy, {T, S, M}}, {states, {T, S, H}}, {first, {S, H}}, {keep, {T, S}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto d = floats(in, 0), h = floats(in, 1), h0 = floats(in, 2), kept = floats(in, 3);
    sum_products(T * S, size_t(M) * H, floats(to, 0), [=](int begin, int count, float beta, float* out) {
      std::vector<float> before(size_t(count) * H);
      auto prepare = [&, begin](int first, int end) {
        for (int i = first; i < end; ++i) {
          int k = begin + i;
          auto from = k < S ? h0 + int64_t(k) * H : h + int64_t(k - S) * H;
          for (int j = 0; j < H; ++j) before[size_t(i) * H + j] = kept[k] * from[j];
        }
      };
      if (gemm_splits)
        prepare(0, count);
      else
        over_rows(count, 1, prepare);
      gemm(kRowMajor, kTransposed, kAsIs, M, H, count, 1, d + int64_t(begin) * M, M, before.data(), H, beta, out, H);
    });
  };
  return call("RecurrentWeightGradient", kernel, {dy, states, first, keep}, {mx::Shape{M, H}})[0];
}

}  // namespace puffer
