// cartpole with one continuous action from -1 to 1, the fraction of force_mag to push with: the code
// of ../cartpole, compiled for another action space.

#define ACT_SIZES {1}  // all 1: continuous
#define CONTINUOUS 1
#define OBS_TENSOR_T FloatTensor  // upstream's build looks for this line in this file
#include "../cartpole/binding.c"
