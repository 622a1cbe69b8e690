#pragma once

#include <nanobind/stl/optional.h>

#include "ops/cpu/binding.h"
#include "ops/linear/linear.h"

namespace puffer {

// The BLAS's `cblas_sgemm` (32-bit integers; 0: none), and whether the threads here divide a product among them, calling
// it for rows each, or it is called once for all. Between two evaluations only.
inline void set_gemm(uintptr_t address, bool split) {
  gemm = reinterpret_cast<Gemm>(address);
  gemm_splits = split;
}

inline const Binding linear_binding([](nb::module_& m, nb::class_<Actor>&) {
  m.def("linear", &linear, "x"_a, "weight"_a, "columns"_a, "bias"_a = nb::none());
  m.def("linear_input_gradient", &linear_input_gradient, "dy"_a, "weight"_a, "columns"_a, "add"_a = nb::none());
  m.def("linear_weight_gradient", &linear_weight_gradient, "dy"_a, "x"_a, "columns"_a);
  m.def("linear_bias_gradient", &linear_bias_gradient, "dy"_a, "columns"_a);
  m.def("set_gemm", &set_gemm, "address"_a, "split"_a = true);
  m.def("has_gemm", [] { return gemm != nullptr; });
});

}  // namespace puffer
