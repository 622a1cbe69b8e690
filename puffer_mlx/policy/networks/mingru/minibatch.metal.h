// A minibatch's gradients in one launch: MinGRU's.

#include "walks.metal.h"
