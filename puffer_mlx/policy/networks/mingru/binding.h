#pragma once

#include <memory>

#include "ops/cpu/binding.h"
#include "policy/networks/mingru/scan.h"
#include "policy/networks/mingru/step.h"

namespace puffer {

inline const Binding mingru_binding([](nb::module_& m, nb::class_<Actor>& actor) {
  m.def("mingru_forward", &mingru_forward_node, "u"_a, "x"_a, "first"_a, "keep"_a);
  m.def("mingru_backward", &mingru_backward_node, "u"_a, "x"_a, "first"_a, "keep"_a, "states"_a, "dout"_a);
  auto layer = [](Actor& actor, uintptr_t weight, int H, int state) {
    actor.add(std::make_unique<MinGRULayer>(floats_at(weight), H, state));
  };
  actor.def("mingru", layer, "weight"_a, "hidden"_a, "state"_a);
});

}  // namespace puffer
