// Macros that add functions of a header to the extension. `ops/cpu_extension.py` includes all headers. The macros are empty when
// tests compile a header without Python.
//
//   OPERATION(function, ...)      adds a function to the Python module; names of its arguments may follow
//   OPERATION_AS(name, function)  adds a function under another name
//   STAGE(name, Layer, types)     adds a method of Actor that appends a Layer, constructed from arguments of these types; a float32
//                                 array (C-contiguous) is passed as an address, 0 for none

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

// Registers a function that adds functions to the module and methods to Actor when the module is imported.
class Binding {
 public:
  using Add = void (*)(nb::module_& m, nb::class_<Actor>& actor);

  explicit Binding(Add add) { all().push_back(add); }

  static std::vector<Add>& all() {
    static std::vector<Add> all;
    return all;
  }
};

inline float* floats_at(uintptr_t address) { return reinterpret_cast<float*>(address); }

// Conversion of a stage's argument from its type in Python: addresses become pointers.
template <class T>
struct Argument {
  using Type = T;
  static T of(T value) { return value; }
};

template <>
struct Argument<const float*> {
  using Type = uintptr_t;
  static const float* of(uintptr_t address) { return floats_at(address); }
};

template <class Layer, class... Types>
void add_stage(nb::class_<Actor>& actor, const char* name) {
  actor.def(name, [](Actor& actor, typename Argument<Types>::Type... arguments) {
    actor.add(std::make_unique<Layer>(Argument<Types>::of(arguments)...));
  });
}

}  // namespace puffer

#endif
#define OPERATION(function, ...) OPERATION_AS(function, function __VA_OPT__(,) __VA_ARGS__)
