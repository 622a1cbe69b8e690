#pragma once

#include <nanobind/stl/vector.h>

#include "ops/cpu/binding.h"
#include "ops/dense/dense.h"

namespace puffer {

inline const Binding dense_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("dense", &dense, "x"_a, "weight"_a, "bias"_a, "tanh"_a);
  m.def("dense_gradients", &dense_gradients, "x"_a, "y"_a, "dy"_a, "tanh"_a);
});

}  // namespace puffer
