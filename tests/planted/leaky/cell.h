#pragma once

#include "ops/cpu/arithmetic.h"

namespace puffer {

template <class V>
inline V leaky_cell(V u, V x, V before) {
  return before + logistic(u) * (x - before);
}

}  // namespace puffer
