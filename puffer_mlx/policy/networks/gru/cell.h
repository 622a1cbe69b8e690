// The GRU as PyTorch defines it, gates r, u, n (its r, z, n): some channels in one step, for training and for acting.
//
//   hp = keep_t h_{t-1},  [hr hu hn] = W hp + b
//   r = sigma(z_r + hr),  u = sigma(z_u + hu),  n = tanh(z_n + r hn),  h_t = n + u (hp - n)

#pragma once

#include "ops/cpu/arithmetic.h"

namespace puffer {

struct GRUCell {
  Lanes r, u, n, h;  // the gates after their activations
};

// r, u: z_r + hr, z_u + hu; before: hp.
inline GRUCell gru_cell(Lanes r, Lanes u, Lanes z_n, Lanes hn, Lanes before) {
  r = logistic(r), u = logistic(u);
  Lanes n = tanh(z_n + r * hn);
  return {r, u, n, n + u * (before - n)};
}

}  // namespace puffer
