// The MinGRU recurrence for training on CPUs: T steps forward and backward, each in one pass over memory. Equations: cell.h.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"
#include "policy/networks/mingru/cell.h"

namespace puffer {

// Compute one MinGRU step of one row. u: [hidden | gate | projection], H each; the state before the step is not_done * previous.
inline void mingru_row(int H, const float* __restrict u, const float* __restrict x, float not_done,
                       const float* __restrict previous, float* __restrict out, float* __restrict state) {
  for (int h = 0; h < H; ++h) {
    auto cell = mingru_cell(u[h], u[H + h], u[2 * H + h], x[h], not_done * previous[h]);
    state[h] = cell.state;
    out[h] = cell.out;
  }
}

// Compute the gradient of `mingru_row`. carry: dL/dstate from the next step, replaced by dL/dprevious.
// noinline: if GCC 12 inlines this, it ignores __restrict and doesn't vectorize, which is 4 to 6 times slower.
[[gnu::noinline]] inline void mingru_row_gradient(int H, const float* __restrict u, const float* __restrict x,
                                                  float not_done, const float* __restrict previous,
                                                  const float* __restrict state, const float* __restrict dout,
                                                  float* __restrict carry, float* __restrict du,
                                                  float* __restrict dx) {
  for (int h = 0; h < H; ++h) {
    MinGRUGradient<float> by;
    mingru_gradient(u[h], u[H + h], u[2 * H + h], x[h], not_done, previous[h], state[h], dout[h], carry[h], by);
    du[h] = by.hidden;
    du[H + h] = by.gate;
    du[2 * H + h] = by.projection;
    dx[h] = by.x;
  }
}

inline void mingru_forward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto u = floats(in, 0), x = floats(in, 1), first = floats(in, 2), not_done = floats(in, 3);
  auto out = floats(to, 0), states = floats(to, 1);
  over_rows(S, T, [=](int begin, int end) {
    for (int t = 0; t < T; ++t) {
      for (int s = begin; s < end; ++s) {
        int64_t k = int64_t(t) * S + s;
        const float* previous = t ? states + (k - S) * H : first + int64_t(s) * H;
        mingru_row(H, u + k * 3 * H, x + k * H, not_done[k], previous, out + k * H, states + k * H);
      }
    }
  });
}

inline void mingru_backward(int T, int S, int H, const Buffers& in, const Outputs& to) {
  auto u = floats(in, 0), x = floats(in, 1), first = floats(in, 2), not_done = floats(in, 3);
  auto states = floats(in, 4), dout = floats(in, 5);
  auto du = floats(to, 0), dx = floats(to, 1), dfirst = floats(to, 2);
  over_rows(S, T, [=](int begin, int end) {
    std::memset(dfirst + int64_t(begin) * H, 0, sizeof(float) * int64_t(end - begin) * H);
    for (int t = T - 1; t >= 0; --t) {
      for (int s = begin; s < end; ++s) {
        int64_t k = int64_t(t) * S + s;
        const float* previous = t ? states + (k - S) * H : first + int64_t(s) * H;
        mingru_row_gradient(H, u + k * 3 * H, x + k * H, not_done[k], previous, states + k * H, dout + k * H,
                            dfirst + int64_t(s) * H, du + k * 3 * H, dx + k * H);
      }
    }
  });
}

// ---- graph nodes ---------------------------------------------------------------------------------------------------

inline void expect_mingru(const Array& u, const Array& x, const Array& first, const Array& not_done) {
  expect(x.ndim() == 3, "mingru: x must be (T, S, H)");
  int T = x.shape(0), S = x.shape(1), H = x.shape(2);
  expect_shapes("mingru", {{u, {T, S, 3 * H}}, {x, x.shape()}, {first, {S, H}}, {not_done, {T, S}}});
}

// Create the graph node of a MinGRU's forward pass over T steps. u (T, S, 3H), x (T, S, H), first (S, H), not_done (T, S) -> out
// (T, S, H), states (T, S, H)
inline Arrays mingru_forward_node(const Array& u, const Array& x, const Array& first, const Array& not_done) {
  expect_mingru(u, x, first, not_done);
  int T = x.shape(0), S = x.shape(1), H = x.shape(2);
  auto kernel = [=](const Buffers& in, const Outputs& to) { mingru_forward(T, S, H, in, to); };
  return call("MinGRU", kernel, {u, x, first, not_done}, {x.shape(), x.shape()});
}

// Create the graph node of a MinGRU's backward pass over T steps. u, x, first, not_done, states, dout (T, S, H) -> du (T, S, 3H),
// dx (T, S, H) of the highway only, dfirst (S, H)
inline Arrays mingru_backward_node(const Array& u, const Array& x, const Array& first, const Array& not_done,
                                   const Array& states, const Array& dout) {
  expect_mingru(u, x, first, not_done);
  expect_shapes("mingru", {{states, x.shape()}, {dout, x.shape()}});
  int T = x.shape(0), S = x.shape(1), H = x.shape(2);
  auto kernel = [=](const Buffers& in, const Outputs& to) { mingru_backward(T, S, H, in, to); };
  return call("MinGRUGradient", kernel, {u, x, first, not_done, states, dout}, {u.shape(), x.shape(), first.shape()});
}

OPERATION_AS(mingru_forward, mingru_forward_node);
OPERATION_AS(mingru_backward, mingru_backward_node);

}  // namespace puffer
