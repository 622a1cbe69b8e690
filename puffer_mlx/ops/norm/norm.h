// RMSNorm of a sum: y = w (x + r) / rms with rms = sqrt(mean((x + r)^2) + epsilon) for each row. The forward and the backward pass
// each read memory once.

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
    auto a = floats(in, 0), b = floats(in, 1), weight = floats(in, 2);
    auto y = floats(to, 0), inverse = floats(to, 1);
    over_rows(n, 1, [=](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        auto ai = a + int64_t(i) * H, bi = b + int64_t(i) * H;
        Lanes squares = {};
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          Lanes sum = at.load(ai) + at.load(bi);
          squares += sum * sum;
        }
        float scale = inverse_rms(sum_of_lanes(squares), H, epsilon);
        inverse[i] = scale;
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          at.store(y + int64_t(i) * H, (at.load(ai) + at.load(bi)) * scale * at.load(weight));
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
    auto a = floats(in, 0), b = floats(in, 1), weight = floats(in, 2), inverses = floats(in, 3), d = floats(in, 4);
    auto dx = floats(to, 0);
    sum_over_rows(n, H, floats(to, 1), [=](int begin, int count, float* dw) {
      for (int64_t i = begin; i < begin + count; ++i) {
        auto ai = a + i * H, bi = b + i * H, di = d + i * H;
        Lanes products = {};
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          products += at.load(di) * at.load(weight) * (at.load(ai) + at.load(bi));
        }
        float scale = inverses[i], pull = sum_of_lanes(products) * scale * scale / H;
        for (int h = 0; h < H; h += kLanes) {
          Channels at(h, H);
          Lanes normal = (at.load(ai) + at.load(bi)) * scale, slope = at.load(di);
          at.store(dx + i * H, scale * slope * at.load(weight) - normal * pull);
          at.store(dw, at.load(dw) + slope * normal);
        }
      }
    });
  };
  return call("AddRMSNormGradient", kernel, {x, r, w, inverse, dy}, {{n, H}, {H}});
}

OPERATION(add_rms_norm_forward);
OPERATION(add_rms_norm_backward);

}  // namespace puffer
