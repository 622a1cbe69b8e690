#pragma once

#include <cstring>

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"
#include "policy/networks/leaky/cell.h"

namespace puffer {

inline Array leaky_forward_node(const Array& u, const Array& x, const Array& first, const Array& keep) {
  int T = x.shape(0), S = x.shape(1), H = x.shape(2);
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto u = floats(in, 0), x = floats(in, 1), first = floats(in, 2), keep = floats(in, 3);
    auto states = floats(to, 0);
    over_rows(S, T, [=](int begin, int end) {
      for (int t = 0; t < T; ++t)
        for (int s = begin; s < end; ++s)
          for (int h = 0; h < H; ++h) {
            int64_t row = int64_t(t) * S + s, k = row * H + h;
            float before = keep[row] * (t ? states[k - int64_t(S) * H] : first[int64_t(s) * H + h]);
            states[k] = leaky_cell(u[k], x[k], before);
          }
    });
  };
  return call("Leaky", kernel, {u, x, first, keep}, {x.shape()})[0];
}

inline Arrays leaky_backward_node(const Array& u, const Array& x, const Array& first, const Array& keep,
                                  const Array& states, const Array& dout) {
  int T = x.shape(0), S = x.shape(1), H = x.shape(2);
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto u = floats(in, 0), x = floats(in, 1), first = floats(in, 2), keep = floats(in, 3);
    auto states = floats(in, 4), dout = floats(in, 5);
    auto du = floats(to, 0), dx = floats(to, 1), carry = floats(to, 2);
    over_rows(S, T, [=](int begin, int end) {
      std::memset(carry + int64_t(begin) * H, 0, sizeof(float) * int64_t(end - begin) * H);
      for (int t = T - 1; t >= 0; --t)
        for (int s = begin; s < end; ++s)
          for (int h = 0; h < H; ++h) {
            int64_t row = int64_t(t) * S + s, k = row * H + h, own = int64_t(s) * H + h;
            float z = logistic(u[k]), before = keep[row] * (t ? states[k - int64_t(S) * H] : first[own]);
            float ds = carry[own] + dout[k];
            du[k] = ds * (x[k] - before) * z * (1.0f - z);
            dx[k] = ds * z;
            carry[own] = keep[row] * ds * (1.0f - z);
          }
    });
  };
  return call("LeakyGradient", kernel, {u, x, first, keep, states, dout}, {x.shape(), x.shape(), first.shape()});
}

OPERATION_AS(leaky_forward, leaky_forward_node);
OPERATION_AS(leaky_backward, leaky_backward_node);

}  // namespace puffer
