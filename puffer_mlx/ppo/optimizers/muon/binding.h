#pragma once

#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include "ops/cpu/binding.h"
#include "ppo/optimizers/muon/muon.h"

namespace puffer {

inline const Binding muon_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("muon_step", &muon_step, "weights"_a, "grads"_a, "momentum"_a, "lr"_a, "loss"_a, "max_norm"_a, "beta"_a,
        "decay"_a, "coefficients"_a);
});

}  // namespace puffer
