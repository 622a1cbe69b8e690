// RMSNorm of a sum: y = w (x + r) / rms with rms = sqrt(mean((x + r)^2) + epsilon) for each row, where r is the residual. The forward
// and the backward pass each read memory once.

#pragma once

#include "ops/cpu/arithmetic.h"
#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"
#include "ops/linear/linear.h"
#include "ops/norm/equations.h"

namespace puffer {

// Return y (n, H) and 1 / rms (n,) from x and r (n, H) and w (H,).
inline Arrays add_rms_norm_forward(const Array& x, const Array& r, const Array& w, float epsilon) {
  expect(x.ndim() == 2, "add_rms_norm: x must be (n, H)");
  int n = x.shape(0), H = x.shape(1);
  expect_shapes("add_rms_norm", {{x, {n, H}}, {r, {n, H}}, {w, {H}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto x_rows = floats(in, 0), r_rows = floats(in, 1), weight = floats(in, 2);
    auto y = floats(to, 0), inverse = floats(to, 1);
    over_rows(n, 1, [=](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        auto x_row = x_rows + int64_t(i) * H, r_row = r_rows + int64_t(i) * H;
        Lanes squares = {};
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          Lanes sum = at.load(x_row) + at.load(r_row);
          squares += sum * sum;
        }
        float scale = inverse_rms(sum_of_lanes(squares), H, epsilon);
        inverse[i] = scale;
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          at.store(y + int64_t(i) * H, (at.load(x_row) + at.load(r_row)) * scale * at.load(weight));
        }
      }
    });
  };
  return call("AddRMSNorm", kernel, {x, r, w}, {{n, H}, {n}});
}

// Return the gradients dx (n, H), which equals dr, and dw (H,) from x, r, w, 1 / rms (n,) and dy (n, H).
inline Arrays add_rms_norm_backward(const Array& x, const Array& r, const Array& w, const Array& inverse,
                                    const Array& dy) {
  expect(x.ndim() == 2, "add_rms_norm: x must be (n, H)");
  int n = x.shape(0), H = x.shape(1);
  expect_shapes("add_rms_norm", {{x, {n, H}}, {r, {n, H}}, {w, {H}}, {inverse, {n}}, {dy, {n, H}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto x_rows = floats(in, 0), r_rows = floats(in, 1), weight = floats(in, 2);
    auto inverses = floats(in, 3), dy_rows = floats(in, 4);
    auto dx = floats(to, 0);
    sum_over_rows(n, H, floats(to, 1), [=](int begin, int count, float* dw) {
      for (int64_t i = begin; i < begin + count; ++i) {
        auto x_row = x_rows + i * H, r_row = r_rows + i * H, dy_row = dy_rows + i * H;
        Lanes products = {};
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          products += at.load(dy_row) * at.load(weight) * (at.load(x_row) + at.load(r_row));
        }
        // The rms depends on all inputs of its row: this factor of the normalized row is its part of dx.
        float scale = inverses[i], rms_factor = sum_of_lanes(products) * scale * scale / H;
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          Lanes normalized = (at.load(x_row) + at.load(r_row)) * scale, gradient = at.load(dy_row);
          at.store(dx + i * H, scale * gradient * at.load(weight) - normalized * rms_factor);
          at.store(dw, at.load(dw) + gradient * normalized);
        }
      }
    });
  };
  return call("AddRMSNormGradient", kernel, {x, r, w, inverse, dy}, {{n, H}, {H}});
}

OPERATION(add_rms_norm_forward);
OPERATION(add_rms_norm_backward);

}  // namespace puffer
