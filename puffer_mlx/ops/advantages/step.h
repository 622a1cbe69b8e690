// A step of the backward recursion of advantages: `discount` of __init__.py. The one text of it in C: see ops/words.h.

#pragma once

#include "ops/words.h"

namespace puffer {

FUNCTION float discounted(float delta, float decay, float next) { return delta + decay * next; }

}  // namespace puffer
