// The GRU recurrence for training on CPUs: T steps forward and backward. Equations: cell.h.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/recurrence/recurrence.h"
#include "policy/networks/gru/cell.h"

namespace puffer {

inline void gru_forward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto z = floats(in, 0), weight_hh = floats(in, 1), bias_hh = floats(in, 2), h0 = floats(in, 3), not_done = floats(in, 4);
  auto h = floats(to, 0), gates = floats(to, 1);
  walk_forward<3>(T, S, H, weight_hh, h0, h, [=](int t, int64_t k, int s, Channels at, const Lanes* sums) {
    auto before = t ? h + (k - S) * H : h0 + int64_t(s) * H, of_input = z + k * 3 * H;
    float kept = not_done[k], *saved = gates + k * 4 * H;
    Lanes hidden = kept * sums[2] + at.load(bias_hh + 2 * H);
    auto cell = gru_cell<Lanes>(at.load(of_input) + kept * sums[0] + at.load(bias_hh),
                                at.load(of_input + H) + kept * sums[1] + at.load(bias_hh + H),
                                at.load(of_input + 2 * H), hidden, kept * at.load(before));
    Lanes parts[] = {cell.r, cell.u, cell.n, hidden};
    for (int v = 0; v < 4; ++v) at.store(saved + v * H, parts[v]);
    at.store(h + k * H, cell.h);
  });
}

inline void gru_backward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto gates = floats(in, 0), weight_hh = floats(in, 1), h0 = floats(in, 2), not_done = floats(in, 3);
  auto h = floats(in, 4), dh = floats(in, 5);
  auto dz = floats(to, 0), dhidden = floats(to, 1), dh0 = floats(to, 2);
  auto row = [=](int t, int64_t k, int s, Channels at, Lanes sum, float kept) {
    auto before = t ? h + (k - S) * H : h0 + int64_t(s) * H;
    auto saved = gates + k * 4 * H;
    float *carry = dh0 + int64_t(s) * H, *by_z = dz + k * 3 * H, *by_hidden = dhidden + k * 3 * H;
    Lanes d = at.load(dh + k * H) + kept * (at.load(carry) + sum);
    auto by = gru_gradient<Lanes>(at.load(saved), at.load(saved + H), at.load(saved + 2 * H), at.load(saved + 3 * H),
                                  not_done[k] * at.load(before), d);
    Lanes parts[] = {by.r, by.u, by.n, by.hn};
    for (int v = 0; v < 3; ++v) at.store(by_z + v * H, parts[v]), at.store(by_hidden + v * H, parts[v < 2 ? v : 3]);
    at.store(carry, by.before);  // without the path through W, and without the factor not_done
  };
  auto last = [=](int s, Channels at, Lanes sum) {
    at.store(dh0 + int64_t(s) * H, not_done[s] * (at.load(dh0 + int64_t(s) * H) + sum));
  };
  walk_backward<3>(T, S, H, weight_hh, dhidden, not_done, dh0, row, last);
}

// ---- graph nodes ---------------------------------------------------------------------------------------------------

// Create the graph node of a GRU's forward pass over T steps. z (T, S, 3H), weight_hh (3H, H), bias_hh (3H,), h0 (S, H), not_done
// (T, S) -> h (T, S, H), gates (T, S, 4H): r, u, n, hn
inline Arrays gru_forward_node(const Array& z, const Array& weight_hh, const Array& bias_hh, const Array& h0,
                               const Array& not_done) {
  expect(z.ndim() == 3 && h0.ndim() == 2, "gru: z must be (T, S, 3H), h0 (S, H)");
  int T = z.shape(0), S = z.shape(1), H = h0.shape(1);
  expect_shapes("gru", {{z, {T, S, 3 * H}}, {weight_hh, {3 * H, H}}, {bias_hh, {3 * H}}, {h0, {S, H}}, {not_done, {T, S}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) { gru_forward(T, S, H, in, to); };
  return call("GRU", kernel, {z, weight_hh, bias_hh, h0, not_done}, {{T, S, H}, {T, S, 4 * H}});
}

// Create the graph node of a GRU's backward pass over T steps. gates, weight_hh, h0, not_done, h, dh (T, S, H) -> dz, dhidden (T,
// S, 3H; gradient by W hp + b), dh0 (S, H)
inline Arrays gru_backward_node(const Array& gates, const Array& weight_hh, const Array& h0, const Array& not_done,
                                const Array& h, const Array& dh) {
  expect(gates.ndim() == 3 && h0.ndim() == 2, "gru: gates must be (T, S, 4H), h0 (S, H)");
  int T = gates.shape(0), S = gates.shape(1), H = h0.shape(1);
  mx::Shape states{T, S, H}, wide{T, S, 3 * H};
  expect_shapes("gru", {{gates, {T, S, 4 * H}}, {weight_hh, {3 * H, H}}, {h0, {S, H}}, {not_done, {T, S}}});
  expect_shapes("gru", {{h, states}, {dh, states}});
  auto kernel = [=](const Buffers& in, const Outputs& to) { gru_backward(T, S, H, in, to); };
  return call("GRUGradient", kernel, {gates, weight_hh, h0, not_done, h, dh}, {wide, wide, {S, H}});
}

OPERATION_AS(gru_forward, gru_forward_node);
OPERATION_AS(gru_backward, gru_backward_node);

}  // namespace puffer
