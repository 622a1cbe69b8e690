// Declarations of everything that an environment's rules can use on a GPU, for this machine's C++
// compiler. On a GPU there are no standard headers, no double and no static variables.

#define FUNCTION
#define IN_THREAD
#ifdef __clang__  // gcc has no address spaces in C++
#define IN_SHARED __attribute__((address_space(3)))
#else
#define IN_SHARED
#endif
typedef __SIZE_TYPE__ size_t;
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
extern "C" {
float fabsf(float);
float sinf(float);
float cosf(float);
float sqrtf(float);
float expf(float);
float logf(float);
float floorf(float);
float ceilf(float);
}
