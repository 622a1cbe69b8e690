// Part of a backward kernel: the product of the gradients after this step.
#define ROWS after
#define SUMS sums[c_][v]
#include "recurrence/product.metal.h"
