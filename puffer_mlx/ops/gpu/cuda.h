// Definitions for CUDA: text.py puts them before every kernel file, and `begin` at the start of every kernel.

#define FUNCTION __device__ inline
#define CALLED __device__ __attribute__((noinline))
#define SHARED __shared__
#define IN_DEVICE
#define IN_SHARED
#define IN_THREAD
#define MULTIPLY_ADD(a, b, c) fmaf(a, b, c)
#define BARRIER __syncthreads();
#define DEVICE_BARRIER __syncthreads();
// A DEVICE_BARRIER for all threads of a cluster, which has `blocks` adjacent blocks (sm_90 and later).
#if __CUDA_ARCH__ >= 900
#define CLUSTER_BARRIER(blocks)                                                                               \
  if ((blocks) > 1) {                                                                                         \
    asm volatile("fence.acq_rel.gpu;\n\tbarrier.cluster.arrive.release.aligned;\n\t"                         \
                 "barrier.cluster.wait.acquire.aligned;\n\tfence.acq_rel.gpu;" ::: "memory");                 \
  } else {                                                                                                    \
    __syncthreads();                                                                                          \
  }
#else
#define CLUSTER_BARRIER(blocks) __syncthreads();
#endif
// Asynchronous copies of 16 bytes to shared memory. END_OF_COPIES ends a group of copies; WAIT_FOR_COPIES(n) waits for all groups but
// the last n. Other threads see the data after a BARRIER.
#if __CUDA_ARCH__ >= 800
#define COPY_LINE(from, to)                                                                                   \
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned int)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#define END_OF_COPIES asm volatile("cp.async.commit_group;" ::: "memory");
#define WAIT_FOR_COPIES(others) asm volatile("cp.async.wait_group %0;" ::"n"(others) : "memory");
#else
#define END_OF_COPIES
#define WAIT_FOR_COPIES(others)
#endif
// SHARED_POOL: shared memory whose size is set at the launch, the only way to get more than 48 kB.
#ifdef __CUDA_ARCH__
#define PREFETCH(address) asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#define SHARED_POOL(name, count) extern __shared__ float name[];
#else
#define PREFETCH(address)
#define SHARED_POOL(name, count) SHARED float name[count];
#endif
using uint = unsigned int;

namespace puffer {}  // portable code: ops/portable.h
using namespace puffer;

KERNEL begin {
  uint i = blockIdx.x * blockDim.x + threadIdx.x, me = threadIdx.x, block = blockIdx.x;
}
