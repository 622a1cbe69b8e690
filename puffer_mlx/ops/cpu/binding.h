// Macros with which any header adds functions to the extension; `ops/cpu_extension.py` includes all headers. They are empty when
// tests compile a header without Python.
//
//   OPERATION(function, ...)      adds a module function; optional argument names follow
//   OPERATION_AS(name, function)  adds it under another name
//   STAGE(name, Layer, types)     adds an Actor method that appends a Layer constructed from arguments of these types; float32
//                                 memory (C-contiguous) is passed as an address, 0 for none

#pragma once

#ifndef PUFFER_BUILT_FOR  // defined when the extension is compiled
#define OPERATION_AS(name, function, ...)
#define STAGE(name, Layer, ...)
#else

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/cpu/actor.h"

#define OPERATION_AS(name, function, ...)                                       \
  inline const Binding name##_binding([](nb::module_& m, nb::class_<Actor>&) { \
    m.def(#name, &function __VA_OPT__(, ) __VA_ARGS__);                        \
  })
#define STAGE(name, Layer, ...)                                                  \
  inline const Binding name##_stage([](nb::module_&, nb::class_<Actor>& actor) { \
    add_stage<Layer, __VA_ARGS__>(actor, #name);                                 \
  })

namespace puffer {

namespace nb = nanobind;
using namespace nb::literals;

class Binding {
 public:
  // Adds functions to the module and methods to Actor.
  using Add = void (*)(nb::module_& m, nb::class_<Actor>& actor);

  explicit Binding(Add add) { all().push_back(add); }

  static std::vector<Add>& all() {
    static std::vector<Add> all;
    return all;
  }
};

inline float* floats_at(uintptr_t address) { return reinterpret_cast<float*>(address); }

template <class T>
struct Given {
  using Type = T;
  static T of(T value) { return value; }
};

template <>
struct Given<const float*> {
  using Type = uintptr_t;
  static const float* of(uintptr_t address) { return floats_at(address); }
};

template <class Layer, class... Types>
void add_stage(nb::class_<Actor>& actor, const char* name) {
  actor.def(name, [](Actor& actor, typename Given<Types>::Type... given) {
    actor.add(std::make_unique<Layer>(Given<Types>::of(given)...));
  });
}

}  // namespace puffer

#endif
#define OPERATION(function, ...) OPERATION_AS(function, function __VA_OPT__(,) __VA_ARGS__)
