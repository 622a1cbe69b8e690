// The recurrence of a GRU over time for training, forward and backward. What is computed: cell.h.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/recurrence/recurrence.h"
#include "policy/networks/gru/cell.h"

namespace puffer {

// One step of one row's `at`: sums = W h_{t-1}.
inline void gru_row(Channels at, int H, const Lanes* sums, const float* z, const float* bias_hh, float keep,
                    const float* h_before, float* gates, float* h) {
  Lanes hidden = keep * sums[2] + at.load(bias_hh + 2 * H);
  auto cell = gru_cell<Lanes>(at.load(z) + keep * sums[0] + at.load(bias_hh),
                       at.load(z + H) + keep * sums[1] + at.load(bias_hh + H), at.load(z + 2 * H), hidden,
                       keep * at.load(h_before));
  at.store(gates, cell.r);
  at.store(gates + H, cell.u);
  at.store(gates + 2 * H, cell.n);
  at.store(gates + 3 * H, hidden);
  at.store(h, cell.h);
}

// Gradient of `gru_row` for dL/dh_t = dh, by z and by W hp + b. What reaches h_{t-1} past the product goes to `carry`;
// like the product, it lacks its factor keep.
inline void gru_row_gradient(Channels at, int H, Lanes dh, const float* gates, float keep, const float* h_before,
                             float* carry, float* dz, float* dhidden) {
  auto by = gru_gradient<Lanes>(at.load(gates), at.load(gates + H), at.load(gates + 2 * H), at.load(gates + 3 * H),
                                keep * at.load(h_before), dh);
  at.store(dz, by.r);
  at.store(dz + H, by.u);
  at.store(dz + 2 * H, by.n);
  at.store(dhidden, by.r);
  at.store(dhidden + H, by.u);
  at.store(dhidden + 2 * H, by.hn);
  at.store(carry, by.before);
}

inline void gru_forward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto z = floats(in, 0), weight_hh = floats(in, 1), bias_hh = floats(in, 2), h0 = floats(in, 3), keep = floats(in, 4);
  auto h = floats(to, 0), gates = floats(to, 1);
  walk_forward<3>(T, S, H, weight_hh, h0, h, [=](int t, int64_t k, int s, Channels at, const Lanes* sums) {
    auto before = t ? h + (k - S) * H : h0 + int64_t(s) * H;
    gru_row(at, H, sums, z + k * 3 * H, bias_hh, keep[k], before, gates + k * 4 * H, h + k * H);
  });
}

inline void gru_backward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto gates = floats(in, 0), weight_hh = floats(in, 1), h0 = floats(in, 2), keep = floats(in, 3);
  auto h = floats(in, 4), dh = floats(in, 5);
  auto dz = floats(to, 0), dhidden = floats(to, 1), dh0 = floats(to, 2);
  auto row = [=](int t, int64_t k, int s, Channels at, Lanes sum, float kept) {
    auto before = t ? h + (k - S) * H : h0 + int64_t(s) * H;
    float* carry = dh0 + int64_t(s) * H;
    Lanes d = at.load(dh + k * H) + kept * (at.load(carry) + sum);
    gru_row_gradient(at, H, d, gates + k * 4 * H, keep[k], before, carry, dz + k * 3 * H, dhidden + k * 3 * H);
  };
  auto last = [=](int s, Channels at, Lanes sum) {
    at.store(dh0 + int64_t(s) * H, keep[s] * (at.load(dh0 + int64_t(s) * H) + sum));
  };
  walk_backward<3>(T, S, H, weight_hh, dhidden, keep, dh0, row, last);
}

// ---- graph nodes ---------------------------------------------------------------------------------------------------

// z (T, S, 3H), weight_hh (3H, H), bias_hh (3H,), h0 (S, H), keep (T, S)
// -> h (T, S, H), and r, u, n and n's part of W hp + b, (T, S, 4H)
inline Arrays gru_forward_node(const Array& z, const Array& weight_hh, const Array& bias_hh, const Array& h0,
                               const Array& keep) {
  expect(z.ndim() == 3 && h0.ndim() == 2, "gru: z must be (T, S, 3H), h0 (S, H)");
  int T = z.shape(0), S = z.shape(1), H = h0.shape(1);
  expect_shapes(
      "gru: z (T, S, 3H), weight_hh (3H, H), bias_hh (3H,), h0 (S, H) and keep (T, S) must be float32 and agree",
      {{z, {T, S, 3 * H}}, {weight_hh, {3 * H, H}}, {bias_hh, {3 * H}}, {h0, {S, H}}, {keep, {T, S}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) { gru_forward(T, S, H, in, to); };
  return call("GRU", kernel, {z, weight_hh, bias_hh, h0, keep}, {{T, S, H}, {T, S, 4 * H}});
}

// gates, weight_hh, h0, keep, h, dh (T, S, H) -> dz, dhidden (T, S, 3H; gradient by W hp + b), dh0 (S, H)
inline Arrays gru_backward_node(const Array& gates, const Array& weight_hh, const Array& h0, const Array& keep,
                                const Array& h, const Array& dh) {
  expect(gates.ndim() == 3 && h0.ndim() == 2, "gru: gates must be (T, S, 4H), h0 (S, H)");
  int T = gates.shape(0), S = gates.shape(1), H = h0.shape(1);
  mx::Shape states{T, S, H}, wide{T, S, 3 * H};
  expect_shapes(
      "gru: gates (T, S, 4H), weight_hh (3H, H), h0 (S, H), keep (T, S), h and dh (T, S, H) must be float32 and agree",
      {{gates, {T, S, 4 * H}}, {weight_hh, {3 * H, H}}, {h0, {S, H}}, {keep, {T, S}}, {h, states}, {dh, states}});
  auto kernel = [=](const Buffers& in, const Outputs& to) { gru_backward(T, S, H, in, to); };
  return call("GRUGradient", kernel, {gates, weight_hh, h0, keep, h, dh}, {wide, wide, {S, H}});
}

OPERATION_AS(gru_forward, gru_forward_node);
OPERATION_AS(gru_backward, gru_backward_node);

}  // namespace puffer
