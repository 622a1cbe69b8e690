// The optimizers' equations for one weight, and the clip by the gradients' global norm, for CPUs and GPUs: see ops/portable.h.

#pragma once

#include "ops/portable.h"

namespace puffer {

// scale: factor of the gradients. ok: true if gradients and loss are finite; otherwise the step changes nothing.
struct Clip {
  bool ok;
  float scale;
};

FUNCTION bool is_finite(float x) { return x >= -3.402823466e38f && x <= 3.402823466e38f; }

FUNCTION Clip clip_by(float norm, float loss, float max_norm) {
  float scale = max_norm / (norm + 1e-6f);
  return {is_finite(norm) && is_finite(loss), scale < 1.0f ? scale : 1.0f};
}

// ---- Adam ----------------------------------------------------------------------------------------------------------

// Coefficients of one step. clip: factor of the gradients. add1, add2: 1 - beta1, 1 - beta2. decayed: 1 - lr decay, factor of the
// weight. rate and root: lr and factor of sqrt(v), both with bias corrections.
struct AdamStep {
  float clip, beta1, beta2, add1, add2, decayed, rate, root, eps;
};

// Make Adam's step for one weight w: update w and its moments m and v with the gradient g.
FUNCTION void adam_move(IN_THREAD const AdamStep& by, float g, IN_THREAD float& w, IN_THREAD float& m, IN_THREAD float& v) {
  float gradient = by.clip * g;
  m = by.beta1 * m + by.add1 * gradient;
  v = by.beta2 * v + by.add2 * (gradient * gradient);
  w = by.decayed * w - by.rate * m / (by.root * sqrt(v) + by.eps);
}

// ---- Muon ----------------------------------------------------------------------------------------------------------

// Coefficients of a X + (b X X^T + c (X X^T)^2) X.
struct Quintic {
  float a, b, c;
};

// Update one element m of Muon's momentum with the gradient g. Returns the Nesterov update, which Muon orthogonalises.
FUNCTION float nesterov(float clip, float g, float beta, IN_THREAD float& m) {
  float gradient = clip * g;
  m = beta * m + gradient;
  return gradient + beta * m;
}

FUNCTION float one_over_norm(float norm) { return 1.0f / (norm > 1e-7f ? norm : 1e-7f); }

// Return the factor sqrt(max(1, R / C)) by which Muon multiplies the learning rate for a matrix (R, C), as in PufferLib.
FUNCTION float muon_scale(float R, float C) { return sqrt(R > C ? R / C : 1.0f); }

}  // namespace puffer
