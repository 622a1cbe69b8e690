// What differs on CUDA: what comes before every text, and how every kernel begins.

#define FUNCTION __device__ inline
#define SHARED __shared__
#define IN_DEVICE
#define IN_SHARED
#define IN_THREAD
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#define BARRIER __syncthreads();
#define DEVICE_BARRIER __syncthreads();
using uint = unsigned int;

namespace puffer {}  // texts that are C++'s as well: ops/words.h
using namespace puffer;

KERNEL begin {
  uint i = blockIdx.x * blockDim.x + threadIdx.x, me = threadIdx.x, block = blockIdx.x;
}
