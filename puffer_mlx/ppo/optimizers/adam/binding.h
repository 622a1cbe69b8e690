#pragma once

#include <nanobind/stl/vector.h>

#include "ops/cpu/binding.h"
#include "ppo/optimizers/adam/adam.h"

namespace puffer {

inline const Binding adam_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("adam_step", &adam_step, "weights"_a, "grads"_a, "momentum"_a, "second"_a, "made"_a, "lr"_a, "loss"_a,
        "max_norm"_a, "beta1"_a, "beta2"_a, "eps"_a, "decay"_a);
});

}  // namespace puffer
