// Elementwise work on several threads.

#pragma once

#include "ops/cpu/arithmetic.h"
#include "ops/cpu/threads.h"

namespace puffer {

// Call work(first element, lanes) for each run of up to kLanes of the elements [begin, end).
template <class Work>
inline void each_of(int64_t begin, int64_t end, Work work) {
  for (int64_t i = begin; i < end; i += kLanes)
    work(i, Channels(0, static_cast<int>(std::min<int64_t>(end - i, kLanes))));
}

// Call `work` as `each_of` does for elements [0, size), divided among threads.
template <class Work>
inline void over_elements(int64_t size, Work work) {
  constexpr int kRun = 64;  // elements that count as one row
  over_rows(static_cast<int>((size + kRun - 1) / kRun), 1, [=](int begin, int end) {
    each_of(int64_t(begin) * kRun, std::min(size, int64_t(end) * kRun), work);
  });
}

}  // namespace puffer
