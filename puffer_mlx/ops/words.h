// The words of a text that the CPU's C++, Metal and CUDA have in common, as C++ on a CPU says them. Such a text is in the
// namespace `puffer`, has its numbers' type V as a template's parameter (float; on a CPU Lanes too), and includes this file.
// On a GPU it gets ops/gpu/functions.metal.h instead, with the words of metal.h or cuda.h.
//
//   FUNCTION             how a function is declared
//   IN_THREAD            where a reference points: to memory of the thread's own
//   logistic(V), squash(V), exp(float), log(float)

#pragma once

#include <cmath>

#include "ops/cpu/arithmetic.h"

#define FUNCTION inline
#define IN_THREAD

namespace puffer {

using std::exp;
using std::log;

template <class V>
inline V squash(V x) {
  return tanh(x);
}

}  // namespace puffer
