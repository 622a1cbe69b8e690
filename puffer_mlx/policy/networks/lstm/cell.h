// The LSTM as PyTorch defines it, gates i, f, g, o: some channels in one step, for training and for acting.
//
//   hp = keep_t h_{t-1},  cp = keep_t c_{t-1},  [i f g o] = z_t + W hp
//   c_t = sigma(f) cp + sigma(i) tanh(g),       h_t = sigma(o) tanh(c_t)

#pragma once

#include "ops/cpu/arithmetic.h"

namespace puffer {

struct LSTMCell {
  Lanes i, f, g, o, c, h;  // the gates after their activations
};

// i, f, g, o: before their activations; before: cp.
inline LSTMCell lstm_cell(Lanes i, Lanes f, Lanes g, Lanes o, Lanes before) {
  i = logistic(i), f = logistic(f), g = tanh(g), o = logistic(o);
  Lanes c = f * before + i * g;
  return {i, f, g, o, c, o * tanh(c)};
}

}  // namespace puffer
