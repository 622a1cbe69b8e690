// The file that is compiled for an environment of PufferLib 5.0: its NAME.h (the path PUFFER_HEADER)
// and the loops around its functions. Environments of 4.0 have a binding.c instead.

#include PUFFER_HEADER

#include "../glue_5.h"
