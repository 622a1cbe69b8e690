// The actor for Python (`rollout/acting_in_c.py`), which checks shapes, passes memory as addresses and keeps it alive.

#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/cpu/actor.h"
#include "ops/cpu/binding.h"

namespace puffer {

inline const int32_t* rows_at(uintptr_t address) { return reinterpret_cast<const int32_t*>(address); }

inline void bind_rollout(Actor& actor, int64_t N, uintptr_t rows, uintptr_t observations, bool bytes, uintptr_t terminals,
                         uintptr_t masks, uintptr_t noise, uintptr_t actions, uintptr_t logprobs, uintptr_t values,
                         const std::vector<uintptr_t>& states) {
  Rollout rollout{N,
                  rows_at(rows),
                  reinterpret_cast<const void*>(observations),
                  bytes,
                  floats_at(terminals),
                  reinterpret_cast<const uint8_t*>(masks),
                  floats_at(noise),
                  floats_at(actions),
                  floats_at(logprobs),
                  floats_at(values),
                  {}};
  for (auto address : states) rollout.states.push_back(floats_at(address));
  actor.bind(std::move(rollout));
}

inline nanobind::class_<Actor> bind_actor(nanobind::module_& m) {
  namespace nb = nanobind;
  using namespace nb::literals;
  auto dense = [](Actor& actor, uintptr_t weight, uintptr_t bias, int M, int K, int activation) {
    actor.add(make_dense(floats_at(weight), floats_at(bias), M, K, Activation(activation)));
  };
  auto logstd = [](Actor& actor, uintptr_t values) { actor.set_logstd(floats_at(values)); };
  nb::class_<Actor> actor(m, "Actor");
  actor
      .def(nb::init<int, int, std::vector<int>, bool, float>(), "inputs"_a, "hidden"_a, "sizes"_a, "continuous"_a,
           "limit"_a)
      .def("clear", &Actor::clear)
      .def("dense", dense, "weight"_a, "bias"_a, "outputs"_a, "inputs"_a, "activation"_a)
      .def("critic", &Actor::begin_critic)
      .def("logstd", logstd, "values"_a)
      .def("bind", &bind_rollout, "agents"_a, "rows"_a, "observations"_a, "bytes"_a, "terminals"_a, "masks"_a, "noise"_a,
           "actions"_a, "logprobs"_a, "values"_a, "states"_a)
      .def("function", [](Actor&) { return reinterpret_cast<uintptr_t>(&acting_function<Actor>); })
      .def("context", [](Actor& actor) { return reinterpret_cast<uintptr_t>(&actor); })
      .def("acting", &Actor::acting)
      .def("sampling", &Actor::sampling);
  auto add = [](Actors& actors, Actor& one, int64_t N, uintptr_t rows, int64_t count) {
    actors.add(&one, N, rows_at(rows), count);
  };
  nb::class_<Actors>(m, "Actors")
      .def(nb::init<>())
      .def("add", add, "actor"_a, "agents"_a, "rows"_a, "count"_a, nb::keep_alive<1, 2>())
      .def("function", [](Actors&) { return reinterpret_cast<uintptr_t>(&acting_function<Actors>); })
      .def("context", [](Actors& actors) { return reinterpret_cast<uintptr_t>(&actors); });
  return actor;
}

}  // namespace puffer
