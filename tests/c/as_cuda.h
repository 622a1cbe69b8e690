// CUDA's declarations for a kernel's text, so that a clang without CUDA can check it. Nothing is run.

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

struct Place {
  unsigned x;
};
#define threadIdx (Place{(unsigned)__nvvm_read_ptx_sreg_tid_x()})
#define blockIdx (Place{(unsigned)__nvvm_read_ptx_sreg_ctaid_x()})
#define blockDim (Place{(unsigned)__nvvm_read_ptx_sreg_ntid_x()})

typedef __SIZE_TYPE__ size_t;
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

__device__ size_t __cvta_generic_to_shared(const void* address);
__device__ unsigned int __float_as_uint(float x);
__device__ float __uint_as_float(unsigned int x);
__device__ float exp(float x);
__device__ float log(float x);
__device__ float sqrt(float x);
__device__ float pow(float x, float y);
__device__ float fmaf(float x, float y, float z);
__device__ float fabsf(float x);
__device__ float sinf(float x);
__device__ float cosf(float x);
__device__ float ceilf(float x);

// As CUDA's types of 16 bits: they convert both ways.
struct __half {
  unsigned short bits;
  __half() = default;
  __device__ __half(float x) : bits((unsigned short)x) {}
  __device__ operator float() const { return (float)bits; }
};
