// Elementwise operations, divided among threads.

#pragma once

#include "ops/cpu/arithmetic.h"
#include "ops/cpu/threads.h"

namespace puffer {

// Split the elements [begin, end) into runs of up to kLanes, and call work(first element, channels) for each run.
template <class Work>
inline void each_of(int64_t begin, int64_t end, Work work) {
  for (int64_t i = begin; i < end; i += kLanes)
    work(i, Channels(0, static_cast<int>(std::min<int64_t>(end - i, kLanes))));
}

// Call `work` as `each_of` does, for the elements [0, size) divided among threads.
template <class Work>
inline void over_elements(int64_t size, Work work) {
  constexpr int kRun = 64;  // elements per row in `over_rows`
  over_rows(static_cast<int>((size + kRun - 1) / kRun), 1, [=](int begin, int end) {
    each_of(int64_t(begin) * kRun, std::min(size, int64_t(end) * kRun), work);
  });
}

}  // namespace puffer
