"""GPU kernels: one body text for Metal and CUDA, used where a benchmark says so.

MLX compiles a kernel from source at first use. Metal and CUDA bodies differ only in how a thread
finds its index, so each kernel here is one text and ``_INDEX`` adds the first line. One thread owns
one channel of one segment and walks through time, so neighbouring threads read neighbouring memory.

Measured on the H200 against the pure MLX form: see ``benchmarks/RESULTS.md``. Not run on Metal: the
text is checked by compiling it as C++ and running it thread by thread (``tests/test_kernels.py``).
"""

import functools

import mlx.core as mx

THREADS = 256  # threads of one block (CUDA) or threadgroup (Metal)

_INDEX = {
    "metal": "uint i = thread_position_in_grid.x;\n",
    "cuda": "using uint = unsigned int; uint i = blockIdx.x * blockDim.x + threadIdx.x;\n",
}

# u (T, S, 3H) = [hidden | gate | projection], x (T, S, H), first (S, H) -> out, states (T, S, H)
MINGRU_FORWARD = r"""
  if (i < (uint)(S * H)) {
    float state = first[i];
    uint k = i, j = (i / H) * 3 * H + i % H;
    for (int t = 0; t < T; ++t) {
      float hidden = u[j], z = 1.0f / (1.0f + exp(-u[j + H])), q = 1.0f / (1.0f + exp(-u[j + 2 *
      H])); float g = hidden >= 0.0f ? hidden + 0.5f : 1.0f / (1.0f + exp(-hidden)); state += z * (g
      - state); states[k] = state; out[k] = x[k] + q * (state - x[k]); k += S * H; j += 3 * S * H;
    }
  }
"""

# ... and states, dout (T, S, H) -> du (T, S, 3H), dx (T, S, H), dfirst (S, H)
MINGRU_BACKWARD = r"""
  if (i < (uint)(S * H)) {
    float carry = 0.0f;
    uint k = i + (uint)(T - 1) * S * H, j = (i / H) * 3 * H + i % H + (uint)(T - 1) * 3 * S * H;
    for (int t = T - 1; t >= 0; --t) {
      float hidden = u[j], z = 1.0f / (1.0f + exp(-u[j + H])), q = 1.0f / (1.0f + exp(-u[j + 2 *
      H])); float g = hidden + 0.5f, slope = 1.0f;
      if (hidden < 0.0f) { g = 1.0f / (1.0f + exp(-hidden)); slope = g * (1.0f - g); }
      float before = t > 0 ? states[k - S * H] : first[i];
      float d = dout[k], ds = carry + d * q;
      du[j] = ds * z * slope;
      du[j + H] = ds * (g - before) * z * (1.0f - z);
      du[j + 2 * H] = d * (states[k] - x[k]) * q * (1.0f - q);
      dx[k] = d * (1.0f - q);
      carry = ds * (1.0f - z);
      k -= S * H; j -= 3 * S * H;
    }
    dfirst[i] = carry;
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


def backend() -> str:
    """``metal`` or ``cuda``: the GPU back-end of this MLX build."""
    return "metal" if mx.metal.is_available() else "cuda"


@functools.cache
def _kernel(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], body: str):
    make = getattr(mx.fast, backend() + "_kernel")
    return make(
        name=name,
        input_names=list(inputs),
        output_names=list(outputs),
        source=_INDEX[backend()] + body,
    )


def mingru_forward(u: mx.array, x: mx.array, first: mx.array) -> tuple[mx.array, mx.array]:
    """MinGRU gates, recurrence and highway for T steps.

    Args:
        u: (T, S, 3H) float32, the layer's product ``x @ W.T``: hidden, gate, projection.
        x: (T, S, H) float32, the layer's input.
        first: (S, H) float32, the state before the first step.

    Returns:
        Outputs and states, both (T, S, H) float32.
    """
    T, S, H = x.shape
    kernel = _kernel("mingru_forward", ("u", "x", "first"), ("out", "states"), MINGRU_FORWARD)
    return kernel(
        inputs=[u, x, first],
        template=[("T", T), ("S", S), ("H", H)],
        grid=(S * H, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[x.shape, x.shape],
        output_dtypes=[x.dtype, x.dtype],
    )


def mingru_backward(
    u: mx.array, x: mx.array, first: mx.array, states: mx.array, dout: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradient of ``mingru_forward``'s outputs.

    Args:
        u: as given to the forward pass.
        x: as given to the forward pass.
        first: as given to the forward pass.
        states: (T, S, H), as the forward pass returned them.
        dout: (T, S, H), gradient of the loss by the outputs.

    Returns:
        Gradients by ``u`` (T, S, 3H), by ``x`` (T, S, H; the highway's part only) and by ``first``
        (S, H).
    """
    T, S, H = x.shape
    kernel = _kernel(
        "mingru_backward",
        ("u", "x", "first", "states", "dout"),
        ("du", "dx", "dfirst"),
        MINGRU_BACKWARD,
    )
    return kernel(
        inputs=[u, x, first, states, dout],
        template=[("T", T), ("S", S), ("H", H)],
        grid=(S * H, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[u.shape, x.shape, first.shape],
        output_dtypes=[u.dtype, x.dtype, first.dtype],
    )


def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Backward recursion of ``ops.discount``: (T - 1, N) twice -> (T, N), float32."""
    M, N = delta.shape
    kernel = _kernel("discount", ("delta", "decay"), ("adv",), DISCOUNT)
    return kernel(
        inputs=[delta, decay],
        template=[("M", M), ("N", N)],
        grid=(N, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(M + 1, N)],
        output_dtypes=[delta.dtype],
    )[0]
