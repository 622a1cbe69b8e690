// Counts of accepted and skipped minibatches (ppo/precision), for CPUs and GPUs: see ops/portable.h.

#pragma once

#include "ops/portable.h"

namespace puffer {

struct Counts {
  int good, skipped, in_a_row, longest;
};

FUNCTION Counts next_counts(Counts before, bool ok) {
  int row = ok ? 0 : before.in_a_row + 1;
  return {ok ? before.good + 1 : 0, before.skipped + (ok ? 0 : 1), row, row > before.longest ? row : before.longest};
}

}  // namespace puffer
