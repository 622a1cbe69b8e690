// Activations of linear layers, and their derivatives.

#pragma once

#include "ops/gelu/activation.h"

namespace puffer {

// Numbered as in `ACTIVATION_CODES` in ops/linear.
enum class Activation { kNone, kGelu, kTanh, kRelu };

// Apply an activation to each number.
inline Lanes activate(Activation activation, Lanes x) {
  switch (activation) {
    case Activation::kGelu: return gelu(x);
    case Activation::kTanh: return tanh(x);
    case Activation::kRelu: return relu(x);
    case Activation::kNone: break;
  }
  return x;
}

// Derivative of the activation at x, where its value is y.
inline Lanes slope(Activation activation, Lanes x, Lanes y) {
  const Lanes zeros = {}, ones = Lanes{} + 1.0f;
  switch (activation) {
    case Activation::kGelu: return gelu_slope(x);
    case Activation::kTanh: return 1.0f - y * y;
    case Activation::kRelu: return x > zeros ? ones : zeros;
    case Activation::kNone: break;
  }
  return ones;
}

}  // namespace puffer
