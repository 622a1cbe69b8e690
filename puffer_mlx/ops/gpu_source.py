"""The texts of the GPU kernels, each one body for Metal and CUDA, and what differs between the two.

MinGRU's gates don't see the state, so one thread owns one channel of one segment and walks through
time; neighbouring threads read neighbouring numbers. Shapes: ``csrc/mingru.h``. The texts of LSTM
and GRU are in ``gpu_source_recurrent.py``.

``Low`` is the type in memory of activations, weights and their gradients: float, or one of 16 bits.
What is loaded becomes float at once and is cast where it is stored: CUDA's types are ambiguous
beside a float in ``?:``, and Metal's bfloat isn't made of a float without being asked to. States
are float in memory too, or small steps would vanish from a running sum. The types of 16 bits are
called half and bfloat in Metal (bfloat from 3.1 on: macOS 14) and __half and __nv_bfloat16 in CUDA.
"""

# The first lines of a body. i: this thread's place in the grid; me: in its block; block: the block.
# A block is CUDA's word; Metal's is threadgroup.
HEADS = {
    "metal": """
#define SHARED threadgroup
#define BARRIER threadgroup_barrier(mem_flags::mem_threadgroup);
  uint i = thread_position_in_grid.x, me = thread_position_in_threadgroup.x;
  uint block = threadgroup_position_in_grid.x;
""",
    "cuda": """
#define SHARED __shared__
#define BARRIER __syncthreads();
  using uint = unsigned int;
  uint i = blockIdx.x * blockDim.x + threadIdx.x, me = threadIdx.x, block = blockIdx.x;
""",
}

FUNCTION = {"metal": "inline", "cuda": "__device__ inline"}  # how one is declared

# What bodies call: FUNCTION replaced, it precedes the kernel.
FUNCTIONS = r"""
FUNCTION float logistic(float x) { return 1.0f / (1.0f + exp(-x)); }

FUNCTION float squash(float x) { return 2.0f * logistic(2.0f * x) - 1.0f; }  // tanh, never inf/inf

// Of the normal distribution, the probability beyond |x| <= 13: csrc/arithmetic.h
FUNCTION float normal_tail(float x) {
  float t = 1.0f / (1.0f + 0.2775f * (x < 0.0f ? -x : x));
  float p = -0.285941558f + t * (0.422440389f - t * 0.110850243f);
  p = t * (0.117252681f + t * (0.0542549534f + t * (0.302843771f + t * p)));
  return p * exp(-0.5f * x * x);
}

template <int R>
struct alignas(4 * R) Rows { float of[R]; };  // a number of each of a block's R segments
"""

# u, x, first, keep -> out, states
MINGRU_FORWARD = r"""
  if (i < (uint)(S * H)) {
    float state = first[i];
    uint row = i / H, k = i, j = row * 3 * H + i % H;
    for (int t = 0; t < T; ++t) {
      float hidden = (float)u[j], input = (float)x[k];
      float z = logistic((float)u[j + H]), q = logistic((float)u[j + 2 * H]);
      float g = hidden >= 0.0f ? hidden + 0.5f : logistic(hidden);
      state *= keep[row];
      state += z * (g - state);
      states[k] = state;
      out[k] = (Low)(input + q * (state - input));
      k += S * H; j += 3 * S * H; row += S;
    }
  }
"""

# u, x, first, keep, states, dout -> du, dx, dfirst
MINGRU_BACKWARD = r"""
  if (i < (uint)(S * H)) {
    float carry = 0.0f;
    uint row = i / H + (uint)(T - 1) * S;
    uint k = i + (uint)(T - 1) * S * H, j = row * 3 * H + i % H;
    for (int t = T - 1; t >= 0; --t) {
      float hidden = (float)u[j], z = logistic((float)u[j + H]), q = logistic((float)u[j + 2 * H]);
      float g = hidden + 0.5f, slope = 1.0f;
      if (hidden < 0.0f) { g = logistic(hidden); slope = g * (1.0f - g); }
      float before = keep[row] * (t > 0 ? states[k - S * H] : first[i]);
      float d = (float)dout[k], ds = carry + d * q;
      du[j] = (Low)(ds * z * slope);
      du[j + H] = (Low)(ds * (g - before) * z * (1.0f - z));
      du[j + 2 * H] = (Low)(d * (states[k] - (float)x[k]) * q * (1.0f - q));
      dx[k] = (Low)(d * (1.0f - q));
      carry = keep[row] * ds * (1.0f - z);
      k -= S * H; j -= 3 * S * H; row -= S;
    }
    dfirst[i] = carry;
  }
"""

# x -> y; N numbers
GELU_FORWARD = r"""
  if (i < (uint)N) {
    float v = (float)x[i], a = v < 0.0f ? -v : v;
    y[i] = (Low)((v < 0.0f ? 0.0f : v) - (a > 13.0f ? 0.0f : a * normal_tail(v)));
  }
"""

# x, dy -> dx
GELU_BACKWARD = r"""
  if (i < (uint)N) {
    float v = (float)x[i], a = v < 0.0f ? -v : v;
    float bell = a > 13.0f ? 0.0f : 0.398942280f * a * exp(-0.5f * v * v) - normal_tail(v);
    dx[i] = (Low)((float)dy[i] * (v < 0.0f ? -bell : 1.0f + bell));
  }
"""

# delta, decay (T - 1, N) -> adv (T, N); M = T - 1
DISCOUNT = r"""
  if (i < (uint)N) {
    float a = 0.0f;
    uint k = i + (uint)M * N;
    adv[k] = a;
    for (int t = M - 1; t >= 0; --t) { k -= N; a = delta[k] + decay[k] * a; adv[k] = a; }
  }
"""
