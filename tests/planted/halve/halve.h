#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"

namespace puffer {

inline Array halve(const Array& x) {
  expect_shapes("halve: x must be float32", {{x, x.shape()}});
  auto kernel = [size = x.size()](const Buffers& in, const Outputs& to) {
    for (size_t i = 0; i < size; ++i) floats(to, 0)[i] = 0.5f * floats(in, 0)[i];
  };
  return call("Halve", kernel, {x}, {x.shape()})[0];
}

OPERATION(halve);

}  // namespace puffer
