// A minibatch's gradients in one launch: GRU's. The gates see the step before: of a step, all segments of a block go through the
// product together.

#include "cell.h"
