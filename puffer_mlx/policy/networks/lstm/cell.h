// The LSTM as PyTorch defines it, gates i, f, g, o: a step of one channel (or a CPU's run of channels), for training and for
// acting. The one text of it in C: see ops/words.h. The gradient is in scan.h and kernels.metal.h: through a function, GCC
// fuses other products with sums, and its last bits would change.
//
//   hp = keep_t h_{t-1},  cp = keep_t c_{t-1},  [i f g o] = z_t + W hp
//   c_t = sigma(f) cp + sigma(i) tanh(g),       h_t = sigma(o) tanh(c_t)

#pragma once

#include "ops/words.h"

namespace puffer {

template <class V>
struct LSTMCell {
  V i, f, g, o, c, h;  // the gates after their activations
};

// i, f, g, o: before their activations; before: cp.
template <class V>
FUNCTION LSTMCell<V> lstm_cell(V i, V f, V g, V o, V before) {
  i = logistic(i), f = logistic(f), g = squash(g), o = logistic(o);
  V c = f * before + i * g;
  return {i, f, g, o, c, o * squash(c)};
}

}  // namespace puffer
