#pragma once

#include <memory>

#include "ops/cpu/binding.h"
#include "ops/norm/norm.h"
#include "ops/norm/step.h"

namespace puffer {

inline const Binding norm_binding([](nb::module_& m, nb::class_<Actor>& actor) {
  m.def("add_rms_norm_forward", &add_rms_norm_forward, "x"_a, "residual"_a, "weight"_a, "epsilon"_a);
  m.def("add_rms_norm_backward", &add_rms_norm_backward, "x"_a, "residual"_a, "weight"_a, "inverse"_a, "dy"_a);
  auto residual = [](Actor& actor, uintptr_t weight, int H, float epsilon) {
    actor.add(std::make_unique<ResidualNorm>(floats_at(weight), H, epsilon));
  };
  actor.def("residual_norm", residual, "weight"_a, "hidden"_a, "epsilon"_a);
});

}  // namespace puffer
