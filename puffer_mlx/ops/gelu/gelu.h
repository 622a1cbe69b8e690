// Exact GELU as an operation of the extension.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/elements.h"
#include "ops/cpu/node.h"
#include "ops/gelu/activation.h"

namespace puffer {

// Return x Phi(x), elementwise.
inline Array gelu_forward(const Array& x) {
  expect_shapes("gelu", {{x, x.shape()}});
  auto kernel = [size = int64_t(x.size())](const Buffers& in, const Outputs& to) {
    auto from = floats(in, 0);
    auto y = floats(to, 0);
    over_elements(size, [=](int64_t i, Channels at) { at.store(y + i, gelu(at.load(from + i))); });
  };
  return call("GELU", kernel, {x}, {x.shape()}, {0})[0];
}

// Return dy times the derivative of GELU at x, elementwise.
inline Array gelu_backward(const Array& x, const Array& dy) {
  expect_shapes("gelu", {{x, x.shape()}, {dy, x.shape()}});
  auto kernel = [size = int64_t(x.size())](const Buffers& in, const Outputs& to) {
    auto from = floats(in, 0), d = floats(in, 1);
    auto dx = floats(to, 0);
    over_elements(size, [=](int64_t i, Channels at) {
      at.store(dx + i, at.load(d + i) * gelu_slope(at.load(from + i)));
    });
  };
  return call("GELUGradient", kernel, {x, dy}, {x.shape()}, {0})[0];
}

OPERATION(gelu_forward);
OPERATION(gelu_backward);

}  // namespace puffer
