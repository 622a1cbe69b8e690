// Types that CUDA's headers declare, for kernels that NVRTC compiles without headers. The 16-bit types convert implicitly from and to
// float.

typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

struct float16 {
  unsigned short bits;
  float16() = default;
  __device__ float16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};

struct bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  __device__ bfloat16(float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    unsigned int u = __float_as_uint(x);  // to nearest, ties to even
    bits = (unsigned short)(x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
  }
  __device__ operator float() const { return __uint_as_float((unsigned int)bits << 16); }
};
