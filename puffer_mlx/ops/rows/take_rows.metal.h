// Kernel that gathers the segments `rows` (S,) of sources (at least T, N, D), as (T, S, D). Rows are copied as units of 4, 2 or 1 bytes.

#pragma once

#include "gpu/functions.metal.h"

// Copy a row of D numbers with `lanes` adjacent threads. Each thread reads AHEAD numbers before it writes one, because the compiler
// may not reorder reads and writes.
template <class Number>
FUNCTION void copy_row(IN_DEVICE const uint8_t* source, IN_DEVICE uint8_t* out, size_t from, size_t to, uint D, uint lane, uint lanes) {
  constexpr uint AHEAD = 4;
  IN_DEVICE const Number* read = (IN_DEVICE const Number*)(IN_DEVICE const void*)source + from * D;
  IN_DEVICE Number* write = (IN_DEVICE Number*)(IN_DEVICE void*)out + to * D;
  for (uint d = lane; d < D; d += AHEAD * lanes) {
    Number part[AHEAD];
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j) part[j] = read[d + j * lanes < D ? d + j * lanes : d];
#pragma unroll
    for (uint j = 0; j < AHEAD; ++j)
      if (d + j * lanes < D) write[d + j * lanes] = part[j];
  }
}

// Gather from up to four sources. arrays: for each source, numbers per row, bytes per number, and lanes (0 if the source is unused).
KERNEL take_several: uint8_t source0 source1 source2 source3, int rows sizes{T S N lanes} arrays -> uint8_t out0 out1 out2 out3 {
  uint T = (uint)sizes.T, S = (uint)sizes.S, all = (uint)sizes.lanes, to = i / all, lane = i % all;
  if (to < T * S) {
    int row = rows[to % S];  // outside [0, N): row 0 or N - 1
    row = row < 0 ? 0 : row < sizes.N ? row : sizes.N - 1;
    size_t from = (size_t)(to / S) * (size_t)sizes.N + (size_t)row;
    uint k = 0;
    while (k < 3 && lane >= (uint)arrays[3 * k + 2]) lane -= (uint)arrays[3 * k++ + 2];
    uint D = (uint)arrays[3 * k], bytes = (uint)arrays[3 * k + 1], lanes = (uint)arrays[3 * k + 2];
    IN_DEVICE const uint8_t* source = k == 0 ? source0 : k == 1 ? source1 : k == 2 ? source2 : source3;
    IN_DEVICE uint8_t* out = k == 0 ? out0 : k == 1 ? out1 : k == 2 ? out2 : out3;
    if (bytes == 4)
      copy_row<uint>(source, out, from, to, D, lane, lanes);
    else if (bytes == 2)
      copy_row<unsigned short>(source, out, from, to, D, lane, lanes);
    else
      copy_row<uint8_t>(source, out, from, to, D, lane, lanes);
  }
}
