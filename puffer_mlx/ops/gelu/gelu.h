// Exact GELU, elementwise.

#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/arithmetic.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"

namespace puffer {

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
