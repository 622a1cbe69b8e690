// A minibatch's gradients in one launch: MinGRU's.

#include "walks.metal.h"
#include "../../../ppo/minibatch/minibatch.kernel.h"
