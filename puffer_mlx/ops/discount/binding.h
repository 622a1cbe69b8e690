#pragma once

#include "ops/cpu/binding.h"
#include "ops/discount/discount.h"

namespace puffer {

inline const Binding discount_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("discount", &discount, "delta"_a, "decay"_a);
});

}  // namespace puffer
