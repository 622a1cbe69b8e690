// One step of the advantages' backward recursion (`discount` of __init__.py), for CPUs and GPUs: see ops/portable.h.

#pragma once

#include "ops/portable.h"

namespace puffer {

FUNCTION float discounted(float delta, float decay, float next) { return delta + decay * next; }

}  // namespace puffer
