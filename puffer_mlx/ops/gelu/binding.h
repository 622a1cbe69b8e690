#pragma once

#include "ops/cpu/binding.h"
#include "ops/gelu/gelu.h"

namespace puffer {

inline const Binding gelu_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("gelu_forward", &gelu_forward, "x"_a);
  m.def("gelu_backward", &gelu_backward, "x"_a, "dy"_a);
});

}  // namespace puffer
