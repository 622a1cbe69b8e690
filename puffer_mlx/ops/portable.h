// C++ definitions of macros and functions for portable code, which is compiled as C++ for the CPU, as Metal and as CUDA. Portable code
// includes this file, is in namespace `puffer`, and takes its number type V as a template parameter (float; on a CPU also Lanes). On
// a GPU, ops/gpu/functions.metal.h with metal.h or cuda.h replaces this file.
//
//   FUNCTION             declares a function
//   IN_THREAD            address space of a pointer or reference: the thread's memory
//   logistic(V)          1 / (1 + e^-x)
//   squash(V)            tanh x (on a GPU computed with logistic, which avoids inf / inf)
//   exp_negative(V)      e^x for -87 <= x <= 0
//   exp_to_zero(V)       e^x for x <= 0
//   log_from_one(V)      log x for x >= 1
//   finite(V)            x without NaN and infinities
//   within(V, float)     x clamped to [-limit, limit]
//   exp(float), log(float), pow(float, float), sqrt(float)

#pragma once

#include "ops/cpu/arithmetic.h"

#define FUNCTION inline
#define IN_THREAD

namespace puffer {

using std::exp;
using std::log;
using std::pow;
using std::sqrt;

template <class V>
inline V squash(V x) {
  return tanh(x);
}

// Clamp x to [-limit, limit]; NaN stays NaN.
inline Lanes within(Lanes x, float limit) {
  Lanes limits = Lanes{} + limit;
  x = x > limits ? limits : x;
  return x < -limits ? -limits : x;
}

// e^x for x <= 0; 0 below -87.
inline Lanes exp_to_zero(Lanes x) {
  Lanes lowest = Lanes{} - 87.0f;
  return x < lowest ? Lanes{} : exp_negative(x);
}

// Natural logarithm of x >= 1, finite, relative error 2e-7: x = 2^n m with m in [1 / sqrt(2), sqrt(2)), and log m =
// 2 atanh((m - 1) / (m + 1)) as its Taylor polynomial.
inline Lanes log_from_one(Lanes x) {
  IntLanes bits = (IntLanes)x, power = ((bits - 0x3f3504f3) >> 23) << 23;  // 0x3f3504f3: 1 / sqrt(2)
  Lanes m = (Lanes)(bits - power), n = __builtin_convertvector(power >> 23, Lanes);
  Lanes s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  Lanes p = 0.333333333f + s2 * (0.2f + s2 * 0.142857143f);
  return n * 0.693147181f + 2.0f * (s + s * s2 * p);
}

// Replace NaN by 0 and infinities by `LARGEST` of policy/distributions.py.
inline Lanes finite(Lanes x) {
  Lanes infinity = Lanes{} + std::numeric_limits<float>::infinity(), largest = Lanes{} + 3.4028e38f;
  x = x != x ? Lanes{} : x;
  x = x == infinity ? largest : x;
  return x == -infinity ? -largest : x;
}

}  // namespace puffer
