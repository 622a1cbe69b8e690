// One step of PyTorch's LSTM with gates i, f, g, o, for one channel (on a CPU, for a vector of channels). Training and acting on
// CPUs and GPUs use this file: see ops/portable.h. The gradient is in scan.h and in the GPU kernels. With a shared function, GCC
// would fuse other multiplications with additions, which changes the last bits.
//
//   hp = not_done_t h_{t-1},  cp = not_done_t c_{t-1},  [i f g o] = z_t + W hp
//   c_t = sigma(f) cp + sigma(i) tanh(g),       h_t = sigma(o) tanh(c_t)

#pragma once

#include "ops/portable.h"

namespace puffer {

template <class V>
struct LSTMCell {
  V i, f, g, o, c, h;  // the gates after their activations
};

// Compute one step of an LSTM: return its activated gates, c and h. i, f, g, o: the gates before their activations; before: cp.
template <class V>
FUNCTION LSTMCell<V> lstm_cell(V i, V f, V g, V o, V before) {
  i = logistic(i), f = logistic(f), g = squash(g), o = logistic(o);
  V c = f * before + i * g;
  return {i, f, g, o, c, o * squash(c)};
}

}  // namespace puffer
