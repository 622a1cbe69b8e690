// A gather of segments: source (at least T, N, D), rows (S,) -> (T, S, D). Bytes are copied, whatever they mean: by four
// where D is a multiple of that.

#pragma once

#include "gpu/functions.metal.h"

// `lanes` neighbouring threads have one step of one segment, AHEAD numbers each at a time: all are read before one is
// written, since no compiler may change that order. Source, Index, Sizes: pointers, to whatever memory.
template <class Source, class Index, class Sizes, class Number>
FUNCTION void copy_rows(Source source, Index rows, Sizes sizes, IN_DEVICE Number* out, uint i) {
  constexpr uint AHEAD = 4;
  uint T = (uint)sizes[0], S = (uint)sizes[1], D = (uint)sizes[3], lanes = (uint)sizes[4], to = i / lanes;
  if (to >= T * S) return;
  int row = rows[to % S];  // outside [0, N): row 0 or N - 1
  row = row < 0 ? 0 : row < sizes[2] ? row : sizes[2] - 1;
  size_t from = ((size_t)(to / S) * (size_t)sizes[2] + (size_t)row) * D, begin = (size_t)to * D;
  for (uint d = i % lanes; d < D; d += AHEAD * lanes) {
    Number part[AHEAD];
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) part[j] = source[from + (d + j * lanes < D ? d + j * lanes : d)];
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j)
      if (d + j * lanes < D) out[begin + d + j * lanes] = part[j];
  }
}

KERNEL take_words: float source, int rows sizes -> float out {
  copy_rows(source, rows, sizes, out, i);
}

KERNEL take_bytes: uint8_t source, int rows sizes -> uint8_t out {
  copy_rows(source, rows, sizes, out, i);
}
