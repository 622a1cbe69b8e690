#pragma once

#include "ops/cpu/binding.h"
#include "ops/draw/draw.h"

namespace puffer {

inline const Binding draw_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("draw_rows", &draw_rows, "adv"_a, "uniforms"_a, "beta"_a, "alpha"_a, "epsilon"_a);
});

}  // namespace puffer
