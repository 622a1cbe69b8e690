// Operations without weights: a gather of segments, the recursion of advantages, GELU.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "arithmetic.h"
#include "node.h"
#include "threads.h"

namespace puffer {

// source (at least T, N, ...), rows (S,) int32 -> (T, S, ...); a row outside [0, N) reads row 0 or N - 1.
inline Array take_rows(const Array& source, const Array& rows, int T) {
  expect(source.ndim() >= 2 && rows.ndim() == 1, "take_rows: source (T, N, ...), rows (S,)");
  expect(rows.dtype() == mx::int32, "take_rows: rows must be int32");
  expect(T >= 1 && T <= source.shape(0) && source.shape(1) >= 1, "take_rows: source has too few steps or no rows");
  int N = source.shape(1), S = rows.shape(0);
  size_t bytes = source.nbytes() / (size_t(source.shape(0)) * N);
  auto shape = source.shape();
  shape[0] = T;
  shape[1] = S;
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto from = static_cast<const char*>(in[0]);
    auto index = static_cast<const int32_t*>(in[1]);
    auto out = static_cast<char*>(to[0]);
    over_rows(S, T, [=](int begin, int end) {
      for (int t = 0; t < T; ++t) {
        for (int s = begin; s < end; ++s) {
          int64_t row = std::clamp(index[s], 0, N - 1);
          std::memcpy(out + (int64_t(t) * S + s) * bytes, from + (int64_t(t) * N + row) * bytes, bytes);
        }
      }
    });
  };
  return call("TakeRows", kernel, {source, rows}, {shape}, {}, {source.dtype()})[0];
}

// adv[T-1] = 0, adv[t] = delta[t] + decay[t] * adv[t+1]; delta, decay (T - 1, N) -> (T, N)
inline Array discount(const Array& delta, const Array& decay) {
  expect(delta.ndim() == 2, "discount: delta and decay must be (T - 1, N)");
  expect_shapes("discount: delta and decay must be (T - 1, N) float32",
                {{delta, delta.shape()}, {decay, delta.shape()}});
  int T = delta.shape(0) + 1, N = delta.shape(1);
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto d = floats(in, 0), k = floats(in, 1);
    auto adv = floats(to, 0);
    std::memset(adv + int64_t(T - 1) * N, 0, sizeof(float) * N);
    for (int64_t i = int64_t(T - 1) * N - 1; i >= 0; --i) adv[i] = d[i] + k[i] * adv[i + N];
  };
  return call("Discount", kernel, {delta, decay}, {{T, N}})[0];
}

// Calls work(first element, its lanes) for every run of kLanes of the elements [0, size), the last run perhaps shorter.
template <class Work>
inline void over_elements(int64_t size, Work work) {
  constexpr int kRun = 64;  // elements that count as one row
  over_rows(static_cast<int>((size + kRun - 1) / kRun), 1, [=](int begin, int end) {
    for (int64_t i = int64_t(begin) * kRun; i < std::min(size, int64_t(end) * kRun); i += kLanes)
      work(i, Channels(0, static_cast<int>(std::min<int64_t>(size - i, kLanes))));
  });
}

// x -> x Phi(x), elementwise
inline Array gelu_forward(const Array& x) {
  expect_shapes("gelu: x must be float32", {{x, x.shape()}});
  auto kernel = [size = int64_t(x.size())](const Buffers& in, const Outputs& to) {
    auto from = floats(in, 0);
    auto y = floats(to, 0);
    over_elements(size, [=](int64_t i, Channels at) { at.store(y + i, gelu(at.load(from + i))); });
  };
  return call("GELU", kernel, {x}, {x.shape()}, {0})[0];
}

// dy times the derivative of `gelu_forward` at x
inline Array gelu_backward(const Array& x, const Array& dy) {
  expect_shapes("gelu: x and dy must be float32 and of one shape", {{x, x.shape()}, {dy, x.shape()}});
  auto kernel = [size = int64_t(x.size())](const Buffers& in, const Outputs& to) {
    auto from = floats(in, 0), d = floats(in, 1);
    auto dx = floats(to, 0);
    over_elements(size, [=](int64_t i, Channels at) {
      at.store(dx + i, at.load(d + i) * gelu_slope(at.load(from + i)));
    });
  };
  return call("GELUGradient", kernel, {x, dy}, {x.shape()}, {0})[0];
}

}  // namespace puffer
