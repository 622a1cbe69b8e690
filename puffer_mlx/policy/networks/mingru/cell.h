// One step of MinGRU and its gradient, for one channel (on a CPU, for a vector of channels): gates, recurrence and highway
// connection. Training and acting on CPUs and GPUs use this file: see ops/portable.h.
//
//   [hidden | gate | projection] = u_t,  z = sigma(gate),  q = sigma(projection)
//   g = hidden + 0.5 if hidden >= 0 else sigma(hidden)
//   s_t = (1 - z) not_done_t s_{t-1} + z g,  out_t = q s_t + (1 - q) x_t

#pragma once

#include "ops/portable.h"

namespace puffer {

template <class V>
struct MinGRUGates {
  V z, q, g;
};

template <class V>
FUNCTION MinGRUGates<V> mingru_gates(V hidden, V gate, V projection) {
  V z = logistic(gate), q = logistic(projection), negative = logistic(hidden);
  V g = hidden >= V{} ? hidden + 0.5f : negative;
  return {z, q, g};
}

// Return a MinGRU's state s_t after a step. before: not_done_t s_{t-1}.
template <class V>
FUNCTION V mingru_state(V z, V g, V before) {
  return before + z * (g - before);
}

template <class V>
FUNCTION V mingru_out(V q, V x, V state) {
  return x + q * (state - x);
}

template <class V>
struct MinGRUCell {
  V state, out;
};

template <class V>
FUNCTION MinGRUCell<V> mingru_cell(V hidden, V gate, V projection, V x, V before) {
  MinGRUGates<V> gates = mingru_gates(hidden, gate, projection);
  V s = mingru_state(gates.z, gates.g, before);
  return {s, mingru_out(gates.q, x, s)};
}

template <class V>
struct MinGRUGradient {
  V hidden, gate, projection, x;  // x: through the highway only
};

// Return the gradient of a MinGRU's previous state, dL/ds_{t-1}. ds: dL/ds_t, including the path through the output.
template <class V>
FUNCTION V mingru_carry(IN_THREAD const V& z, IN_THREAD const V& not_done, IN_THREAD const V& ds) {
  return not_done * ds * (1.0f - z);
}

// Compute the gradient of one MinGRU step, from the state `previous` (s_{t-1}) to `state` (s_t). slope: derivative of g; carry:
// dL/ds_t from the next step, replaced by dL/ds_{t-1}. Arguments are references, because loads and stores of operands decide which
// multiplications GCC fuses with additions, and so the rounding.
template <class V>
FUNCTION void mingru_gradient_of(IN_THREAD const V& z, IN_THREAD const V& q, IN_THREAD const V& g, IN_THREAD const V& slope,
                                 IN_THREAD const V& x, IN_THREAD const V& not_done, IN_THREAD const V& previous,
                                 IN_THREAD const V& state, IN_THREAD const V& dout, IN_THREAD V& carry,
                                 IN_THREAD MinGRUGradient<V>& by) {
  V ds = carry + dout * q;
  by.hidden = ds * z * slope;
  by.gate = ds * (g - not_done * previous) * z * (1.0f - z);
  by.projection = dout * (state - x) * q * (1.0f - q);
  by.x = dout * (1.0f - q);
  carry = mingru_carry(z, not_done, ds);
}

template <class V>
FUNCTION void mingru_gradient(IN_THREAD const V& hidden, IN_THREAD const V& gate, IN_THREAD const V& projection,
                              IN_THREAD const V& x, IN_THREAD const V& not_done, IN_THREAD const V& previous,
                              IN_THREAD const V& state, IN_THREAD const V& dout, IN_THREAD V& carry,
                              IN_THREAD MinGRUGradient<V>& by) {
  V z = logistic(gate), q = logistic(projection), negative = logistic(hidden);
  auto positive = hidden >= V{};
  V g = positive ? hidden + 0.5f : negative;
  V slope = positive ? V{} + 1.0f : negative * (1.0f - negative);
  mingru_gradient_of(z, q, g, slope, x, not_done, previous, state, dout, carry, by);
}

}  // namespace puffer
