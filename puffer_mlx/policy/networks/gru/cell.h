// PyTorch's GRU with gates r, u, n (its r, z, n): a step and its gradient for one channel (on a CPU, one vector of channels), for
// training and acting on CPUs and GPUs: see ops/portable.h.
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

// r, u: z_r + hr, z_u + hu; before: hp.
template <class V>
FUNCTION GRUCell<V> gru_cell(V r, V u, V z_n, V hn, V before) {
  r = logistic(r), u = logistic(u);
  V n = squash(z_n + r * hn);
  return {r, u, n, n + u * (before - n)};
}

template <class V>
struct GRUGradient {
  V r, u, n, hn, before;  // by z_r, z_u, z_n, hn, and by hp without the part through W
};

// r, u, n: the gates after their activations; before: hp; dh: dL/dh_t.
template <class V>
FUNCTION GRUGradient<V> gru_gradient(V r, V u, V n, V hn, V before, V dh) {
  V dn = dh * (1.0f - u) * (1.0f - n * n);
  return {dn * hn * r * (1.0f - r), dh * (before - n) * u * (1.0f - u), dn, dn * r, dh * u};
}

}  // namespace puffer
