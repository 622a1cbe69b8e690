// The backward recursion of advantages, as an operation of the extension.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/advantages/step.h"

namespace puffer {

// Return adv (T, N) from delta and decay (T - 1, N): adv[T-1] = 0, adv[t] = delta[t] + decay[t] * adv[t+1].
inline Array discount(const Array& delta, const Array& decay) {
  expect(delta.ndim() == 2, "discount: delta and decay must be (T - 1, N)");
  expect_shapes("discount", {{delta, delta.shape()}, {decay, delta.shape()}});
  int T = delta.shape(0) + 1, N = delta.shape(1);
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto d = floats(in, 0), k = floats(in, 1);
    auto adv = floats(to, 0);
    std::memset(adv + int64_t(T - 1) * N, 0, sizeof(float) * N);
    for (int64_t i = int64_t(T - 1) * N - 1; i >= 0; --i) adv[i] = discounted(d[i], k[i], adv[i + N]);
  };
  return call("Discount", kernel, {delta, decay}, {{T, N}})[0];
}

OPERATION(discount);

}  // namespace puffer
