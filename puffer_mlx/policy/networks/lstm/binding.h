#pragma once

#include <memory>

#include "ops/cpu/binding.h"
#include "policy/networks/lstm/scan.h"
#include "policy/networks/lstm/step.h"

namespace puffer {

inline const Binding lstm_binding([](nb::module_& m, nb::class_<Actor>& actor) {
  m.def("lstm_forward", &lstm_forward_node, "z"_a, "weight_hh"_a, "h0"_a, "c0"_a, "keep"_a);
  m.def("lstm_backward", &lstm_backward_node, "gates"_a, "weight_hh"_a, "h0"_a, "c0"_a, "keep"_a, "h"_a, "c"_a, "dh"_a);
  auto layer = [](Actor& actor, uintptr_t weight_ih, uintptr_t weight_hh, uintptr_t bias_ih, uintptr_t bias_hh, int H,
                  int state) {
    actor.add(std::make_unique<LSTMLayer>(floats_at(weight_ih), floats_at(weight_hh), floats_at(bias_ih),
                                          floats_at(bias_hh), H, state));
  };
  actor.def("lstm", layer, "weight_ih"_a, "weight_hh"_a, "bias_ih"_a, "bias_hh"_a, "hidden"_a, "state"_a);
});

}  // namespace puffer
