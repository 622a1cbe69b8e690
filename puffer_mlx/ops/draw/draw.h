// Draw the segments of a minibatch on a CPU: one node computes probabilities, samples and importance weights. Equations are in
// ppo/priority.py.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/draw/equations.h"

namespace puffer {

// Return rows (S,) int32 and weights (S,) from adv (T, N), uniforms (S,) in (0, 1] and beta ().
inline Arrays draw_rows(const Array& adv, const Array& uniforms, const Array& beta, float alpha, float epsilon) {
  expect(adv.ndim() == 2 && uniforms.ndim() == 1, "draw_rows: adv (T, N), uniforms (S,)");
  int T = adv.shape(0), N = adv.shape(1), S = uniforms.shape(0);
  expect(T >= 1 && N >= 1, "draw_rows: there are no rows");
  expect_shapes("draw_rows", {{adv, {T, N}}, {uniforms, {S}}, {beta, {}}});
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto a = floats(in, 0), u = floats(in, 1);
    float beta_now = *floats(in, 2), sum = 0;
    auto rows = static_cast<int32_t*>(to[0]);
    auto weights = floats(to, 1);
    std::vector<float> p(N), cdf(N);
    for (int t = 0; t < T; ++t)
      for (int n = 0; n < N; ++n) p[n] += std::fabs(a[int64_t(t) * N + n]);
    for (int n = 0; n < N; ++n) {
      p[n] = segment_weight(p[n], alpha);
      sum += p[n];
    }
    float below = 0;
    for (int n = 0; n < N; ++n) {
      p[n] = segment_probability(p[n], sum, epsilon);
      cdf[n] = below += p[n];
    }
    for (int s = 0; s < S; ++s) {
      auto first = std::lower_bound(cdf.begin(), cdf.end(), u[s]);
      rows[s] = std::min<int32_t>(static_cast<int32_t>(first - cdf.begin()), N - 1);
      weights[s] = segment_importance(float(N), p[rows[s]], beta_now);
    }
  };
  return call("DrawRows", kernel, {adv, uniforms, beta}, {{S}, {S}}, {}, {mx::int32, mx::float32});
}

OPERATION(draw_rows);

}  // namespace puffer
