// MinGRU: gates, recurrence and highway of some channels in one step, for training and for acting.
//
//   [hidden | gate | projection] = u_t,  z = sigma(gate),  q = sigma(projection)
//   g = hidden + 0.5 if hidden >= 0 else sigma(hidden)
//   s_t = (1 - z) keep_t s_{t-1} + z g,  out_t = q s_t + (1 - q) x_t

#pragma once

#include "ops/cpu/arithmetic.h"

namespace puffer {

template <class V>  // Lanes, or float
struct MinGRUCell {
  V state, out;
};

// before: keep_t s_{t-1}.
template <class V>
inline MinGRUCell<V> mingru_cell(V hidden, V gate, V projection, V x, V before) {
  V z = logistic(gate), q = logistic(projection), negative = logistic(hidden);
  V g = hidden >= V{} ? hidden + 0.5f : negative;
  V s = before + z * (g - before);
  return {s, x + q * (s - x)};
}

}  // namespace puffer
