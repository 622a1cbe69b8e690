// Rules for kernel files, and functions for them, in the language that Metal and CUDA share.
//
// A kernel file contains functions, declared with FUNCTION, and kernels, declared as text.py describes. Three variables are defined
// in a kernel: i, the thread's index in the grid; me, its index in the block (Metal: threadgroup); and block, the block's index.
// SHARED memory belongs to a block. After a BARRIER the block's threads see each other's writes to SHARED memory; after a
// DEVICE_BARRIER also writes to outputs; after a CLUSTER_BARRIER also the writes of the cluster's other blocks. The type of a
// function's pointer or reference includes its address space: IN_DEVICE, IN_SHARED or IN_THREAD. On Metal, inputs of fewer than 8
// numbers are in a fourth address space: a kernel may index them, and a function takes the pointer's type as a template parameter.
//
// `Low` is the type in memory of activations, weights and their gradients: float, or a 16-bit type. Numbers are converted to float
// when loaded and cast when stored, because CUDA's 16-bit types are ambiguous next to a float in `?:`, and Metal's bfloat needs an
// explicit cast. States are always float, or small changes would be lost in a running sum. The 16-bit types are half and bfloat in
// Metal (bfloat from Metal 3.1, macOS 14), and __half and __nv_bfloat16 in CUDA.

#pragma once

FUNCTION float logistic(float x) { return 1.0f / (1.0f + exp(-x)); }

FUNCTION float squash(float x) { return 2.0f * logistic(2.0f * x) - 1.0f; }  // tanh, without inf/inf for large x

// Clamp x to [-limit, limit] and replace NaN by 0; limit 0 returns x unchanged.
FUNCTION float within(float x, float limit) {
  if (limit == 0.0f) return x;
  return x != x ? 0.0f : x > limit ? limit : x < -limit ? -limit : x;
}

FUNCTION float exp_negative(float x) { return exp(x); }  // for -87 <= x <= 0

FUNCTION float exp_to_zero(float x) { return exp(x); }  // for x <= 0

FUNCTION float log_from_one(float x) { return log(x); }  // for x >= 1

// Replace NaN by 0 and infinities by `LARGEST` of policy/distributions.py.
FUNCTION float finite(float x) {
  if (x != x) return 0.0f;
  return x > 3.4028234e38f ? 3.4028e38f : x < -3.4028234e38f ? -3.4028e38f : x;
}

template <int R>
struct alignas(4 * R) Rows { float of[R]; };  // one number for each of R segments or agents
