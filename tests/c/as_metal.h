// Metal's declarations for a kernel's text, in C++ for OpenCL without generic pointers, whose rules for address spaces
// are Metal's: a compiler for it is available everywhere. Nothing is run.

#define __METAL_VERSION__ 310
#define device __global
#define threadgroup __local
#define thread __private
#define thread_position_in_grid ((uint3)(0))
#define thread_position_in_threadgroup ((uint3)(0))
#define threadgroup_position_in_grid ((uint3)(0))

typedef unsigned int uint;
typedef __SIZE_TYPE__ size_t;
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef uint uint3 __attribute__((ext_vector_type(3)));

namespace mem_flags {
enum { mem_device, mem_threadgroup };
}
void threadgroup_barrier(int flags);
float exp(float x);
float log(float x);
float sqrt(float x);
float pow(float x, float y);
float fma(float x, float y, float z);
float fabs(float x);
float sin(float x);
float cos(float x);
float ceil(float x);

// As Metal's bfloat: made of a float by a cast alone. A value that has no name yet is in generic memory to clang.
struct bfloat {
  unsigned short bits;
  explicit bfloat(float x) __generic : bits((unsigned short)x) {}
  operator float() const __generic { return (float)bits; }
  operator float() const __global { return (float)bits; }
  operator float() const __local { return (float)bits; }
  void operator=(bfloat other) __global { bits = other.bits; }
  void operator=(bfloat other) __local { bits = other.bits; }
};

// A tile that 32 threads hold together.
struct simdgroup_float8x8 {
  float of[2];
  thread float* thread_elements() thread { return of; }
};
void simdgroup_multiply_accumulate(thread simdgroup_float8x8& sum, thread const simdgroup_float8x8& left,
                                   thread const simdgroup_float8x8& right, thread const simdgroup_float8x8& before);
