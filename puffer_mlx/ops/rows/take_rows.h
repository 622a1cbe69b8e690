// Gather segments on a CPU.

#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"
#include "ops/cpu/threads.h"

namespace puffer {

// Return the segments `rows` (S,) int32 of source (at least T, N, ...), as (T, S, ...). A row outside [0, N) reads row 0 or N - 1.
inline Array take_rows(const Array& source, const Array& rows, int T) {
  expect(source.ndim() >= 2 && rows.ndim() == 1, "take_rows: source (T, N, ...), rows (S,)");
  expect(rows.dtype() == mx::int32, "take_rows: rows must be int32");
  expect(T >= 1 && T <= source.shape(0) && source.shape(1) >= 1, "take_rows: source has too few steps or no rows");
  int N = source.shape(1), S = rows.shape(0);
  size_t bytes = source.nbytes() / (size_t(source.shape(0)) * N);
  auto shape = source.shape();
  shape[0] = T;
  shape[1] = S;
  auto kernel = [=](const Buffers& in, const Outputs& to) {
    auto from = static_cast<const char*>(in[0]);
    auto index = static_cast<const int32_t*>(in[1]);
    auto out = static_cast<char*>(to[0]);
    over_rows(S, T, [=](int begin, int end) {
      for (int t = 0; t < T; ++t) {
        for (int s = begin; s < end; ++s) {
          int64_t row = std::clamp(index[s], 0, N - 1);
          std::memcpy(out + (int64_t(t) * S + s) * bytes, from + (int64_t(t) * N + row) * bytes, bytes);
        }
      }
    });
  };
  return call("TakeRows", kernel, {source, rows}, {shape}, {}, {source.dtype()})[0];
}

OPERATION(take_rows);

}  // namespace puffer
