// GELU and its derivative (ops/gelu), for CPUs and GPUs (ops/portable.h).

#pragma once

#include "ops/portable.h"

namespace puffer {

template <class V>
struct Tail {
  V distance, bell, beyond;
};

// Evaluate the standard normal distribution at |x|. distance: |x|, at most 13, where both other results are 0; bell: density times
// sqrt(2 pi); beyond: probability above |x|, absolute error 1e-8. `beyond` is bell times a polynomial in 1 / (1 + 0.2775 |x|), which was
// fitted on [0, 9] by weighted least squares (Lawson's algorithm).
template <class V>
FUNCTION Tail<V> normal_tail(V x) {
  V a = x < V{} ? -x : x, limit = V{} + 13.0f;
  a = a > limit ? limit : a;
  V bell = exp_negative(-0.5f * a * a), t = 1.0f / (1.0f + 0.2775f * a);
  V p = -0.285941558f + t * (0.422440389f - t * 0.110850243f);
  p = t * (0.117252681f + t * (0.0542549534f + t * (0.302843771f + t * p)));
  return {a, bell, bell * p};
}

// GELU, x Phi(x), absolute error 1e-7.
template <class V>
FUNCTION V gelu(V x) {
  Tail<V> tail = normal_tail(x);
  return (x < V{} ? V{} : x) - tail.distance * tail.beyond;
}

// Derivative of gelu: Phi(x) + x phi(x).
template <class V>
FUNCTION V gelu_slope(V x) {
  Tail<V> tail = normal_tail(x);
  V half_of = 0.398942280f * tail.distance * tail.bell - tail.beyond;
  return x < V{} ? -half_of : 1.0f + half_of;
}

}  // namespace puffer
