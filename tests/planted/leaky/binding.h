#pragma once

#include <memory>

#include "ops/cpu/binding.h"
#include "policy/networks/leaky/scan.h"
#include "policy/networks/leaky/step.h"

namespace puffer {

inline const Binding leaky_binding([](nb::module_& m, nb::class_<Actor>& actor) {
  m.def("leaky_forward", &leaky_forward_node, "u"_a, "x"_a, "first"_a, "keep"_a);
  m.def("leaky_backward", &leaky_backward_node, "u"_a, "x"_a, "first"_a, "keep"_a, "states"_a, "dout"_a);
  auto layer = [](Actor& actor, uintptr_t gate, int H, int state) {
    actor.add(std::make_unique<LeakyLayer>(floats_at(gate), H, state));
  };
  actor.def("leaky", layer, "gate"_a, "hidden"_a, "state"_a);
});

}  // namespace puffer
