// One step of the backward recursion of advantages (`discount` in __init__.py), for CPUs and GPUs (ops/portable.h).

#pragma once

#include "ops/portable.h"

namespace puffer {

FUNCTION float discounted(float delta, float decay, float next) { return delta + decay * next; }

}  // namespace puffer
