// New values and ratios (T, S) of a minibatch's segments into their columns of (T, N), where ok (1,) is above 0; the rest
// is as before. Of a segment that was drawn twice, the last counts, whatever threads do when.
//
// A block owns COLUMNS agents, which neighbouring threads have. Each agent's SLICES threads look for it in a part of the
// rows, LOOKED at a time, and copy a part of the steps: AHEAD of them are read before one is written, since no compiler may
// change that order.

#pragma once

KERNEL put_rows<COLUMNS, SLICES>: float values ratios, int rows, float new_values new_ratios ok, int sizes
  -> float put_values put_ratios {
  constexpr uint AHEAD = 4, LOOKED = 32, columns = (uint)COLUMNS, slices = (uint)SLICES;
  SHARED int found[SLICES * COLUMNS];
  uint T = (uint)sizes[0], N = (uint)sizes[1], S = (uint)sizes[2];
  uint column = me % columns, slice = me / columns, n = block * columns + column;
  int place = -1;
  for (uint first = slice; first < S; first += LOOKED * slices) {
    int row[LOOKED];
#pragma unroll
    for (uint j = 0; j < LOOKED; ++j) row[j] = rows[first + j * slices < S ? first + j * slices : first];
#pragma unroll
    for (uint j = 0; j < LOOKED; ++j)
      if (row[j] == (int)n && first + j * slices < S) place = (int)(first + j * slices);
  }
  found[me] = place;
  BARRIER
  for (uint j = 0; j < slices; ++j) {
    int other = found[j * columns + column];
    place = other > place ? other : place;
  }
  bool replace = place >= 0 && ok[0] > 0.0f;
  if (n < N) {
    for (uint first = slice; first < T; first += AHEAD * slices) {
      float value[AHEAD], ratio[AHEAD];
#pragma unroll
      for (uint j = 0; j < AHEAD; ++j) {
        uint t = first + j * slices < T ? first + j * slices : first, k = t * S + (uint)place;
        value[j] = replace ? new_values[k] : values[t * N + n];
        ratio[j] = replace ? new_ratios[k] : ratios[t * N + n];
      }
#pragma unroll
      for (uint j = 0; j < AHEAD; ++j) {
        uint t = first + j * slices;
        if (t < T) {
          put_values[t * N + n] = value[j];
          put_ratios[t * N + n] = ratio[j];
        }
      }
    }
  }
}
