// One step of PyTorch's GRU and its gradient, for one channel (on a CPU, for a vector of channels). Training and acting on CPUs and
// GPUs use this file: see ops/portable.h. Gates are r, u, n, which PyTorch calls r, z, n.
//
//   hp = not_done_t h_{t-1},  [hr hu hn] = W hp + b
//   r = sigma(z_r + hr),  u = sigma(z_u + hu),  n = tanh(z_n + r hn),  h_t = n + u (hp - n)

#pragma once

#include "ops/portable.h"

namespace puffer {

template <class V>
struct GRUCell {
  V r, u, n, h;  // the gates after their activations
};

// Compute one step of a GRU: return its gates and next state. r, u: z_r + hr and z_u + hu; before: hp.
template <class V>
FUNCTION GRUCell<V> gru_cell(V r, V u, V z_n, V hn, V before) {
  r = logistic(r), u = logistic(u);
  V n = squash(z_n + r * hn);
  return {r, u, n, n + u * (before - n)};
}

template <class V>
struct GRUGradient {
  V r, u, n, hn, before;  // of z_r, z_u, z_n, hn, and of hp without the path through W
};

// Return the gradient of one step of a GRU. r, u, n: the gates after their activations; before: hp; dh: dL/dh_t.
template <class V>
FUNCTION GRUGradient<V> gru_gradient(V r, V u, V n, V hn, V before, V dh) {
  V dn = dh * (1.0f - u) * (1.0f - n * n);
  return {dn * hn * r * (1.0f - r), dh * (before - n) * u * (1.0f - u), dn, dn * r, dh * u};
}

}  // namespace puffer
