// What an environment's rules may use on a GPU: envs/include/vecenv.h, MY_GPU. The rules come behind this, in a namespace.

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

#ifdef __CUDACC_RTC__  // rounded from double they are glibc's, or nearly always; Metal has no double
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
#define RULE FUNCTION
#define OWN IN_THREAD
#define ROW(type) Row<type>

#ifndef IN_ROWS  // where agents' rows are
#define IN_ROWS IN_SHARED
#endif

// In place of a pointer of the struct: where the rows of the environment's agents are.
template <typename Number>
struct alignas(8) Row {
  IN_ROWS Number* at;
  FUNCTION IN_ROWS Number& operator[](int i) const { return at[i]; }
};

// glibc's: envs/src/rand_r.c
RULE int rand_r(unsigned int OWN* seed) {
  unsigned int state = *seed, result = 0;
  for (int draw = 0; draw < 3; ++draw) {
    state = state * 1103515245u + 12345u;
    unsigned int bits = (state >> 16) & (draw == 0 ? 0x7FFu : 0x3FFu);
    result = draw == 0 ? bits : (result << 10) ^ bits;
  }
  *seed = state;
  return (int)result;
}
