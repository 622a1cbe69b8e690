#pragma once

#include "ops/cpu/binding.h"
#include "ops/take_rows/take_rows.h"

namespace puffer {

inline const Binding take_rows_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("take_rows", &take_rows, "source"_a, "rows"_a, "steps"_a);
});

}  // namespace puffer
