// What kernels call, in the language that Metal's and CUDA's have in common. FUNCTION is how a function is declared.
//
// A file of kernels is such a text, with descriptions of its kernels (text.py); what is outside of them goes before them.
// Of its thread a kernel may know i, its place in the grid, and me, that in its block, which has the number `block`
// (CUDA's word; Metal's is threadgroup). Memory that a block's threads have in common is SHARED; they wait for each other
// at a BARRIER, after which each sees what the others wrote to SHARED memory; at a DEVICE_BARRIER, what they wrote to an
// output, too; at a CLUSTER_BARRIER those of several blocks do. A function's pointer or reference says where it points: IN_DEVICE, IN_SHARED, or IN_THREAD. Arrays of fewer
// than 8 numbers are in a fourth place on Metal: a kernel reads them by their index; a function that gets one has the type
// of the pointer as a template's parameter.
//
// `Low` is the type in memory of activations, weights and their gradients: float, or one of 16 bits. What is loaded
// becomes float at once and is cast where it is stored: CUDA's types are ambiguous beside a float in `?:`, and Metal's
// bfloat isn't made of a float without being asked to. States are float in memory too, or small steps would vanish from
// a running sum. The types of 16 bits are called half and bfloat in Metal (bfloat from 3.1 on: macOS 14) and __half and
// __nv_bfloat16 in CUDA.

#pragma once

FUNCTION float logistic(float x) { return 1.0f / (1.0f + exp(-x)); }

FUNCTION float squash(float x) { return 2.0f * logistic(2.0f * x) - 1.0f; }  // tanh, never inf/inf

// x at most `limit` from 0, and NaN as 0; as it is if the limit is 0.
FUNCTION float within(float x, float limit) {
  if (limit == 0.0f) return x;
  return x != x ? 0.0f : x > limit ? limit : x < -limit ? -limit : x;
}

FUNCTION float exp_negative(float x) { return exp(x); }  // of x from -87 to 0, and

FUNCTION float exp_to_zero(float x) { return exp(x); }  // of all x <= 0

FUNCTION float log_from_one(float x) { return log(x); }  // of x >= 1

// NaN is 0, infinities become `LARGEST` of policy/distributions.py.
FUNCTION float finite(float x) {
  if (x != x) return 0.0f;
  return x > 3.4028234e38f ? 3.4028e38f : x < -3.4028234e38f ? -3.4028e38f : x;
}

template <int R>
struct alignas(4 * R) Rows { float of[R]; };  // a number of each of a block's R segments
