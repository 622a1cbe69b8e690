// A minibatch's gradients in one launch: the MLP's.

#include "gelu/activation.h"
