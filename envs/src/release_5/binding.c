// What is compiled of an environment of PufferLib 5.0: its NAME.h, whose path is PUFFER_HEADER, and
// the loops around its functions. Those of 4.0 have a binding.c of their own.

#include PUFFER_HEADER

#include "../glue_5.h"
