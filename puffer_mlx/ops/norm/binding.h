#pragma once

#include "ops/cpu/binding.h"
#include "ops/norm/norm.h"

namespace puffer {

inline const Binding norm_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("add_rms_norm_forward", &add_rms_norm_forward, "x"_a, "residual"_a, "weight"_a, "epsilon"_a);
  m.def("add_rms_norm_backward", &add_rms_norm_backward, "x"_a, "residual"_a, "weight"_a, "inverse"_a, "dy"_a);
});

}  // namespace puffer
