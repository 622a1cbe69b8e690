// The Python module of the extension: CPU operations as nodes of MLX's lazy graph, and the C++ actor. `ops/cpu_extension.py`
// includes the headers of all operations before this file.
//
// Shapes: T steps, S segments (rows), H channels. All arrays are float32, C-contiguous and time-major. An operation is divided into
// parts, which a stream's thread and helper threads of a pool compute. The parts and the order of sums depend on sizes only, so
// results don't depend on the number of threads.

#include "ops/cpu/binding.h"
#include "ops/cpu/stream_limits.h"
#include "ops/cpu/threads.h"

using namespace puffer;

static StreamLimits& limits_of(const mx::Stream& stream) {
  expect(stream.device == mx::Device::cpu, "the stream must be a CPU's");
  return StreamLimitTable::all().of(stream.index);
}

// Set the number of threads per operation of a stream; 0 for the number that `set_threads` set.
static void set_width(const mx::Stream& stream, int threads) {
  expect(threads >= 0, "set_width: threads must be at least 1, or 0 for the default");
  limits_of(stream).num_threads = threads;
}

static int width(const mx::Stream& stream) {
  int threads = limits_of(stream).num_threads;
  return threads ? threads : StreamLimitTable::all().default_num_threads();
}

// Set the maximum number of in-flight operations of this module on a stream, 0 for no limit. Evaluation blocks at the limit, so the
// graph must not need a GPU, whose work starts only when evaluation returns.
static void set_depth(const mx::Stream& stream, int operations) {
  expect(operations >= 0, "set_depth: operations must be at least 1, or 0 for no limit");
  limits_of(stream).set_max_in_flight(operations);
}

// ---- bindings of Actor, for `rollout/acting_in_c.py`, which checks shapes, passes addresses and keeps the memory alive

static const int32_t* rows_at(uintptr_t address) { return reinterpret_cast<const int32_t*>(address); }

static void bind_rollout(Actor& actor, int64_t N, uintptr_t rows, uintptr_t observations, bool bytes, uintptr_t terminals,
                         uintptr_t masks, uintptr_t noise, uintptr_t actions, uintptr_t logprobs, uintptr_t values,
                         const std::vector<uintptr_t>& states) {
  auto seen = reinterpret_cast<const void*>(observations);
  auto legal = reinterpret_cast<const uint8_t*>(masks);
  Rollout rollout{N, rows_at(rows), seen, bytes, floats_at(terminals), legal, floats_at(noise), floats_at(actions),
                  floats_at(logprobs), floats_at(values), {}};
  for (auto address : states) rollout.states.push_back(floats_at(address));
  actor.bind(std::move(rollout));
}

static nb::class_<Actor> bind_actor(nb::module_& m) {
  auto dense = [](Actor& actor, uintptr_t weight, uintptr_t bias, int M, int K, int activation) {
    actor.add(make_dense(floats_at(weight), floats_at(bias), M, K, Activation(activation)));
  };
  nb::class_<Actor> actor(m, "Actor");
  actor.def(nb::init<int, int, std::vector<int>, bool, float>())
      .def("clear", &Actor::clear)
      .def("dense", dense)
      .def("critic", &Actor::begin_critic)
      .def("logstd", [](Actor& actor, uintptr_t values) { actor.set_logstd(floats_at(values)); })
      .def("bind", &bind_rollout)
      .def("function", [](Actor&) { return reinterpret_cast<uintptr_t>(&acting_function<Actor>); })
      .def("context", [](Actor& actor) { return reinterpret_cast<uintptr_t>(&actor); })
      .def("acting", &Actor::acting)
      .def("sampling", &Actor::sampling);
  auto add = [](Actors& actors, Actor& one, int64_t N, uintptr_t rows, int64_t count) {
    actors.add(&one, N, rows_at(rows), count);
  };
  nb::class_<Actors>(m, "Actors")
      .def(nb::init<>())
      .def("add", add, nb::keep_alive<1, 2>())
      .def("function", [](Actors&) { return reinterpret_cast<uintptr_t>(&acting_function<Actors>); })
      .def("context", [](Actors& actors) { return reinterpret_cast<uintptr_t>(&actors); });
  return actor;
}

NB_MODULE(cpu_ops, m) {
  m.def("set_threads", [](int n) { StreamLimitTable::all().set_default_num_threads(n); });
  m.def("set_width", &set_width);
  m.def("width", &width);
  m.def("set_depth", &set_depth);
  m.def("depth", [](const mx::Stream& stream) { return limits_of(stream).max_in_flight(); });
  auto actor = bind_actor(m);
  for (auto add : Binding::all()) add(m, actor);
}
