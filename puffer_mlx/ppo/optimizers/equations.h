// What optimizers do to one number, and the clip by the gradients' global norm: ppo/finite.py, and each
// optimizer's folder. The one text of them in C: see ops/words.h.

#pragma once

#include "ops/words.h"

namespace puffer {

// What gradients are multiplied by, and whether they and the loss are finite; if not, a step changes nothing.
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

// What all numbers of one step are computed with: the clip, both betas and what is missing in them to 1, what is kept of a
// weight; rate and root are lr and 1 / sqrt with the corrections of the first steps in them.
struct AdamStep {
  float clip, beta1, beta2, add1, add2, keep, rate, root, eps;
};

// One weight and its moments, by its gradient.
FUNCTION void adam_move(IN_THREAD const AdamStep& by, float g, IN_THREAD float& w, IN_THREAD float& m, IN_THREAD float& v) {
  float gradient = by.clip * g;
  m = by.beta1 * m + by.add1 * gradient;
  v = by.beta2 * v + by.add2 * (gradient * gradient);
  w = by.keep * w - by.rate * m / (by.root * sqrt(v) + by.eps);
}

// ---- Muon ----------------------------------------------------------------------------------------------------------

// a, b, c of a X + (b X X^T + c (X X^T)^2) X
struct Quintic {
  float a, b, c;
};

// The momentum's next number, and with it what is orthogonalised.
FUNCTION float nesterov(float clip, float g, float beta, IN_THREAD float& m) {
  float gradient = clip * g;
  m = beta * m + gradient;
  return gradient + beta * m;
}

FUNCTION float one_over_norm(float norm) { return 1.0f / (norm > 1e-7f ? norm : 1e-7f); }

// What lr is multiplied by, of a tensor of R rows: upstream's.
FUNCTION float muon_scale(float R, float C) { return sqrt(R > C ? R / C : 1.0f); }

}  // namespace puffer
