// MinGRU's layers in the minibatch kernel: see ppo/minibatch/minibatch.kernel.h.

#include "walks.metal.h"
