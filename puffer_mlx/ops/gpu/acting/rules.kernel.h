// Definitions that environment headers use on a GPU (MY_GPU of envs/include/vecenv.h). The environment's header follows, in a
// namespace.

#ifdef __METAL_VERSION__
#define fabsf fabs
#define sinf sin
#define cosf cos
#define sqrtf sqrt
#define expf exp
#define logf log
#define floorf floor
#define ceilf ceil
#pragma METAL fp contract(off)
#endif

#ifdef __CUDACC_RTC__  // computed in double and rounded, which nearly always gives glibc's result; Metal has no double
FUNCTION float sine_of(float x) { return (float)sin((double)x); }
FUNCTION float cosine_of(float x) { return (float)cos((double)x); }
#define sinf sine_of
#define cosf cosine_of
#endif

#if defined(__METAL_VERSION__)
#define TABLE constant
#elif defined(__CUDACC__)
#define TABLE __constant__ const
#else
#define TABLE static const
#endif
#define ENV_FN FUNCTION
#define ENV_PTR IN_THREAD
#define ENV_ROWS(type) Row<type>
// earlier names of these macros
#define RULE ENV_FN
#define OWN ENV_PTR
#define ROW ENV_ROWS

#ifndef IN_ROWS  // address space of the agents' rows
#define IN_ROWS IN_SHARED
#endif

// Pointer to the rows of an environment's agents, which on a GPU replaces the pointer of the environment's struct.
template <typename Number>
struct alignas(8) Row {
  IN_ROWS Number* at;
  FUNCTION IN_ROWS Number& operator[](int i) const { return at[i]; }
};

// glibc's rand_r: envs/src/rand_r.c
ENV_FN int rand_r(unsigned int ENV_PTR* seed) {
  unsigned int state = *seed, result = 0;
  for (int draw = 0; draw < 3; ++draw) {
    state = state * 1103515245u + 12345u;
    unsigned int bits = (state >> 16) & (draw == 0 ? 0x7FFu : 0x3FFu);
    result = draw == 0 ? bits : (result << 10) ^ bits;
  }
  *seed = state;
  return (int)result;
}
