// How a folder adds its operations to the extension, and its layers to the compiled step: its `binding.h` defines a
// Binding. `ops/cpu_extension.py` finds these files by their name.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "ops/cpu/actor.h"

namespace puffer {

namespace nb = nanobind;
using namespace nb::literals;

class Binding {
 public:
  // Adds functions to the module, and methods to the class of the actor.
  using Add = void (*)(nb::module_& m, nb::class_<Actor>& actor);

  explicit Binding(Add add) { all().push_back(add); }

  static std::vector<Add>& all() {
    static std::vector<Add> all;
    return all;
  }
};

// float32 memory, C-contiguous, that Python gives as an address; 0: none.
inline float* floats_at(uintptr_t address) { return reinterpret_cast<float*>(address); }

}  // namespace puffer
