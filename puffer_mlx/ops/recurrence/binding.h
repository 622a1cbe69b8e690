#pragma once

#include "ops/cpu/binding.h"
#include "ops/recurrence/recurrence.h"

namespace puffer {

inline const Binding recurrence_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("recurrent_weight_gradient", &recurrent_weight_gradient, "dy"_a, "states"_a, "first"_a, "keep"_a);
});

}  // namespace puffer
