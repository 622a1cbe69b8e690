// The LSTM recurrence for training on CPUs: T steps forward and backward. Equations: cell.h.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/recurrence/recurrence.h"
#include "policy/networks/lstm/cell.h"

namespace puffer {

// Compute the gradient of one LSTM step of one segment, for the channels `at`: writes dz. dh: dL/dh_t. carry: on entry dL/dc_t from
// step t + 1, on return dL/dc_{t-1}.
inline void lstm_row_gradient(Channels at, int H, Lanes dh, const float* gates, float not_done, const float* c_before,
                              const float* c, float* carry, float* dz) {
  Lanes i = at.load(gates), f = at.load(gates + H), g = at.load(gates + 2 * H), o = at.load(gates + 3 * H);
  Lanes squashed = tanh(at.load(c)), dc = at.load(carry) + dh * o * (1.0f - squashed * squashed);
  at.store(dz, dc * g * i * (1.0f - i));
  at.store(dz + H, dc * (not_done * at.load(c_before)) * f * (1.0f - f));
  at.store(dz + 2 * H, dc * i * (1.0f - g * g));
  at.store(dz + 3 * H, dh * squashed * o * (1.0f - o));
  at.store(carry, not_done * f * dc);
}

inline void lstm_forward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto z = floats(in, 0), weight_hh = floats(in, 1), h0 = floats(in, 2), c0 = floats(in, 3), not_done = floats(in, 4);
  auto h = floats(to, 0), c = floats(to, 1), gates = floats(to, 2);
  walk_forward<4>(T, S, H, weight_hh, h0, h, [=](int t, int64_t k, int s, Channels at, const Lanes* sums) {
    auto before = t ? c + (k - S) * H : c0 + int64_t(s) * H;
    auto of_input = z + k * 4 * H;
    float kept = not_done[k];
    auto cell = lstm_cell<Lanes>(at.load(of_input) + kept * sums[0], at.load(of_input + H) + kept * sums[1],
                                 at.load(of_input + 2 * H) + kept * sums[2], at.load(of_input + 3 * H) + kept * sums[3],
                                 kept * at.load(before));
    Lanes parts[] = {cell.i, cell.f, cell.g, cell.o};
    for (int v = 0; v < 4; ++v) at.store(gates + (k * 4 + v) * H, parts[v]);
    at.store(c + k * H, cell.c);
    at.store(h + k * H, cell.h);
  });
}

inline void lstm_backward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto gates = floats(in, 0), weight_hh = floats(in, 1), c0 = floats(in, 2), not_done = floats(in, 3);
  auto c = floats(in, 4), dh = floats(in, 5);
  auto dz = floats(to, 0), dh0 = floats(to, 1), dc0 = floats(to, 2);
  auto row = [=](int t, int64_t k, int s, Channels at, Lanes sum, float kept) {
    auto before = t ? c + (k - S) * H : c0 + int64_t(s) * H;
    lstm_row_gradient(at, H, at.load(dh + k * H) + kept * sum, gates + k * 4 * H, not_done[k], before, c + k * H,
                      dc0 + int64_t(s) * H, dz + k * 4 * H);
  };
  auto last = [=](int s, Channels at, Lanes sum) { at.store(dh0 + int64_t(s) * H, not_done[s] * sum); };
  walk_backward<4>(T, S, H, weight_hh, dz, not_done, dc0, row, last);  // dc0 holds dL/dc_t until t = 0
}

// ---- graph nodes ---------------------------------------------------------------------------------------------------

inline void expect_lstm(const Array& z, const Array& weight_hh, const Array& h0, const Array& c0, const Array& not_done) {
  expect(z.ndim() == 3 && h0.ndim() == 2, "lstm: gates must be (T, S, 4H), h0 (S, H)");
  int T = z.shape(0), S = z.shape(1), H = h0.shape(1);
  expect_shapes("lstm", {{z, {T, S, 4 * H}}, {weight_hh, {4 * H, H}}, {h0, {S, H}}, {c0, {S, H}}, {not_done, {T, S}}});
}

// Create the graph node of an LSTM's forward pass over T steps. z (T, S, 4H), weight_hh (4H, H), h0, c0 (S, H), not_done (T, S) ->
// h, c (T, S, H), activated gates (T, S, 4H)
inline Arrays lstm_forward_node(const Array& z, const Array& weight_hh, const Array& h0, const Array& c0,
                                const Array& not_done) {
  expect_lstm(z, weight_hh, h0, c0, not_done);
  int T = z.shape(0), S = z.shape(1), H = h0.shape(1);
  auto kernel = [=](const Buffers& in, const Outputs& to) { lstm_forward(T, S, H, in, to); };
  // The gates may take the memory of z.
  return call("LSTM", kernel, {z, weight_hh, h0, c0, not_done}, {{T, S, H}, {T, S, H}, z.shape()}, {-1, -1, 0});
}

// Create the graph node of an LSTM's backward pass over T steps. gates, weight_hh, h0, c0, not_done, h, c, dh (T, S, H) -> dz (T,
// S, 4H), dh0, dc0 (S, H). The kernel doesn't read h0 and h; they are arguments because the gradient of weight_hh needs them later.
inline Arrays lstm_backward_node(const Array& gates, const Array& weight_hh, const Array& h0, const Array& c0,
                                 const Array& not_done, const Array& h, const Array& c, const Array& dh) {
  expect_lstm(gates, weight_hh, h0, c0, not_done);
  int T = gates.shape(0), S = gates.shape(1), H = h0.shape(1);
  expect_shapes("lstm", {{h, {T, S, H}}, {c, {T, S, H}}, {dh, {T, S, H}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) { lstm_backward(T, S, H, in, to); };
  // dz may take the memory of the gates.
  return call("LSTMGradient", kernel, {gates, weight_hh, c0, not_done, c, dh}, {gates.shape(), {S, H}, {S, H}}, {0});
}

OPERATION_AS(lstm_forward, lstm_forward_node);
OPERATION_AS(lstm_backward, lstm_backward_node);

}  // namespace puffer
