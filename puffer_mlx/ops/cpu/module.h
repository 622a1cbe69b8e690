// The extension: CPU operations as nodes of MLX's lazy graph, and the compiled step. Operations come from folders with a
// `binding.h` of their own, which `ops/cpu_extension.py` includes before this file.
//
// Shapes: T steps, S segments (rows), H channels; everything float32, C-contiguous and time-major.
// Each operation splits its rows into parts, which its stream's thread and helpers from a pool take one after the
// other. What a part is and in which order sums are taken depends on sizes alone, so results don't depend on the number
// of threads.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "ops/cpu/actor_binding.h"
#include "ops/cpu/binding.h"
#include "ops/cpu/shares.h"
#include "ops/cpu/threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace puffer;

static Share& share_of(const mx::Stream& stream) {
  expect(stream.device == mx::Device::cpu, "the stream must be a CPU's");
  return Shares::all().of(stream.index);
}

// How many threads an operation on that stream may use; 0: the number of `set_threads`.
static void set_width(const mx::Stream& stream, int threads) {
  expect(threads >= 0, "set_width: threads must be at least 1, or 0 for the default");
  share_of(stream).width = threads;
}

static int width(const mx::Stream& stream) {
  int own = share_of(stream).width;
  return own ? own : Shares::all().default_width();
}

// How many operations of this module may be under way on that stream; 0: as many as MLX lets. Evaluation waits where
// one more would be too many, so nothing in the same graph may need a GPU, whose work begins only when evaluation ends.
static void set_depth(const mx::Stream& stream, int operations) {
  expect(operations >= 0, "set_depth: operations must be at least 1, or 0 for no limit");
  share_of(stream).set_depth(operations);
}

NB_MODULE(cpu_ops, m) {
  m.def("set_threads", [](int n) { Shares::all().set_default_width(n); }, "threads"_a);
  m.def("set_width", &set_width, "stream"_a, "threads"_a);
  m.def("width", &width, "stream"_a);
  m.def("set_depth", &set_depth, "stream"_a, "operations"_a);
  m.def("depth", [](const mx::Stream& stream) { return share_of(stream).depth(); }, "stream"_a);
  auto actor = bind_actor(m);
  for (auto add : Binding::all()) add(m, actor);
}
