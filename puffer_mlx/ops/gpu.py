"""Fused operations on a GPU: the kernels of ``gpu_source.py`` and ``gpu_source_recurrent.py``.

MLX compiles a kernel from source at first use, for Metal or CUDA. The functions are those of the
CPU extension (``csrc/cpu_ops.cpp``), with the same arguments. Where that knows float32 alone,
these take activations, weights and gradients in float32, bfloat16 or float16: the type of the
first argument is the type of all of them, which the texts call ``Low``. What stays float32 in any
case is in ``FLOAT32``. Metal has bfloat since 3.1 (macOS 14).

Measured on the H200 against the pure MLX forms: see ``benchmarks/RESULTS.md``. Not run on Metal:
the texts are checked by compiling them as C++ and running them (``tests/test_kernels.py``).
"""

import functools
import hashlib

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops import gpu_source, gpu_source_recurrent

THREADS = 256  # threads of one block (CUDA) or threadgroup (Metal), at most
SHARED_BYTES = 32768  # shared memory of one block: Metal's limit
ENOUGH_BLOCKS = 128  # blocks that keep a large GPU's cores busy
ROWS = {"metal": (4, 2), "cuda": (8, 4, 2)}  # segments of a block to choose from, and 1
CHUNK = {"metal": 4, "cuda": 8}  # inputs whose weights a thread reads ahead
# Arrays by their names in the texts: states, gradients by states, and the recursion of advantages.
FLOAT32 = {"first", "keep", "states", "dfirst", "delta", "decay", "adv"}
FLOAT32 |= {"h0", "c0", "h", "c", "dh", "dh0", "dc0"}
Shape = tuple[int, ...]


def backend() -> str:
    """``metal`` or ``cuda``: the GPU back-end of this MLX build."""
    return "metal" if mx.metal.is_available() else "cuda"


@functools.cache
def _kernel(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]):
    """The kernel whose text is called NAME.

    MLX keeps compiled CUDA kernels on disk under their names: a hash makes another text another
    name, so that a newer version of this package never runs an older one's kernel.
    """
    kind, text = backend(), name.upper()
    module = gpu_source if hasattr(gpu_source, text) else gpu_source_recurrent
    header = gpu_source.FUNCTIONS.replace("FUNCTION", gpu_source.FUNCTION[kind])
    source = gpu_source.HEADS[kind] + getattr(module, text)
    return getattr(mx.fast, kind + "_kernel")(
        name=f"{name}_{hashlib.sha256((header + source).encode()).hexdigest()[:8]}",
        input_names=list(inputs),
        output_names=list(outputs),
        header=header,
        source=source,
    )


def _launch(
    name: str,
    inputs: dict[str, mx.array],
    outputs: dict[str, Shape],
    threads: int,
    block: int = THREADS,
    **template: int,
) -> list[mx.array]:
    """Run a kernel of ``threads`` threads, ``block`` to a block: its outputs.

    Every array gets the type that belongs to its name: what MLX compiled for one is never given
    another.
    """
    kernel = _kernel(name, tuple(inputs), tuple(outputs))
    low = next((a.dtype for key, a in inputs.items() if key not in FLOAT32), mx.float32)
    dtypes = {key: mx.float32 if key in FLOAT32 else low for key in (*inputs, *outputs)}
    return kernel(
        inputs=[a.astype(dtypes[key]) for key, a in inputs.items()],
        template=[("Low", low), *template.items()],
        grid=(threads, 1, 1),
        threadgroup=(block, 1, 1),
        output_shapes=list(outputs.values()),
        output_dtypes=[dtypes[key] for key in outputs],
    )


def mingru_forward(
    u: mx.array, x: mx.array, first: mx.array, keep: mx.array
) -> tuple[mx.array, mx.array]:
    """MinGRU gates, recurrence and highway for T steps.

    Args:
        u: (T, S, 3H), the layer's product ``x @ W.T``: hidden, gate, projection.
        x: (T, S, H), the layer's input.
        first: (S, H) float32, the state before the first step.
        keep: (T, S) float32, what the state is multiplied by before each step: 0 forgets.

    Returns:
        Outputs, of u's dtype, and states, float32: both (T, S, H).
    """
    T, S, H = x.shape
    out, states = _launch(
        "mingru_forward",
        {"u": u, "x": x, "first": first, "keep": keep},
        {"out": x.shape, "states": x.shape},
        threads=S * H,
        **{"T": T, "S": S, "H": H},
    )
    return out, states


def mingru_backward(
    u: mx.array,
    x: mx.array,
    first: mx.array,
    keep: mx.array,
    states: mx.array,
    dout: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradient of ``mingru_forward``'s outputs.

    Args:
        u: as given to the forward pass.
        x: as given to the forward pass.
        first: as given to the forward pass.
        keep: as given to the forward pass.
        states: (T, S, H), as the forward pass returned them.
        dout: (T, S, H), gradient of the loss by the outputs.

    Returns:
        Gradients by ``u`` (T, S, 3H), by ``x`` (T, S, H; the highway's part only) and by ``first``
        (S, H), each of its array's dtype.
    """
    T, S, H = x.shape
    du, dx, dfirst = _launch(
        "mingru_backward",
        {"u": u, "x": x, "first": first, "keep": keep, "states": states, "dout": dout},
        {"du": u.shape, "dx": x.shape, "dfirst": first.shape},
        threads=S * H,
        **{"T": T, "S": S, "H": H},
    )
    return du, dx, dfirst


def rows_of_block(S: int, H: int, gates: int) -> int:
    """R, the segments that a block of the LSTM or GRU kernels walks through time with.

    More of them read the weights less often; fewer make more blocks. What a block shares, R H
    numbers for each gate, must fit.

    Raises:
        UserError: not even one segment's fit.
    """
    chunk = 4 * CHUNK[backend()]
    room = SHARED_BYTES // (4 * -(-gates * H // chunk) * chunk)
    if room < 1:
        most = SHARED_BYTES // (4 * chunk) * chunk // gates
        raise UserError(
            f"a recurrent layer {H} wide is too large for the GPU's kernel",
            f"policy.hidden_size {most} at most, or run on the CPU",
        )
    return next((r for r in ROWS[backend()] if r <= room and r * ENOUGH_BLOCKS <= S), 1)


def _recurrence(
    name: str, inputs: dict[str, mx.array], outputs: dict[str, Shape], sizes: Shape, gates: int
) -> list[mx.array]:
    """Run an LSTM or GRU kernel; ``sizes`` are T, S, H."""
    T, S, H = sizes
    R, block = rows_of_block(S, H, gates), min(THREADS, -(-H // 32) * 32)
    # of the product at each step: weights of one input for one channel, inputs, chunk of inputs
    if name.endswith("forward"):
        G, D, U = gates, H, CHUNK[backend()]
    else:
        G, D, U = 1, gates * H, 4 * CHUNK[backend()]
    template = {"T": T, "S": S, "H": H, "R": R, "C": -(-H // block), "THREADS": block}
    template |= {"G": G, "D": D, "U": U, "N": -(-D // U)}
    return _launch(name, inputs, outputs, -(-S // R) * block, block, **template)


def lstm_forward(
    z: mx.array, weight_hh: mx.array, h0: mx.array, c0: mx.array, keep: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """The LSTM recurrence for T steps; gates i, f, g, o.

    Args:
        z: (T, S, 4H), the input's part of the gates, both biases included.
        weight_hh: (4H, H).
        h0: (S, H) float32, the output before the first step.
        c0: (S, H) float32, the cell before the first step.
        keep: (T, S) float32, what h and c are multiplied by before each step: 0 forgets.

    Returns:
        h (T, S, H) and c (T, S, H), float32, and the gates after their activation (T, S, 4H), of
        z's dtype.
    """
    T, S, H = *z.shape[:2], h0.shape[1]
    h, c, gates = _recurrence(
        "lstm_forward",
        {"z": z, "weight": weight_hh.T, "h0": h0, "c0": c0, "keep": keep},
        {"h": (T, S, H), "c": (T, S, H), "gates": z.shape},
        (T, S, H),
        4,
    )
    return h, c, gates


def lstm_backward(
    gates: mx.array,
    weight_hh: mx.array,
    h0: mx.array,
    c0: mx.array,
    keep: mx.array,
    h: mx.array,
    c: mx.array,
    dh: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradient of ``lstm_forward``'s h.

    Args:
        gates: (T, S, 4H), as the forward pass returned them.
        weight_hh: as given to the forward pass.
        h0: not read; what the weight's gradient needs.
        c0: as given to the forward pass.
        keep: as given to the forward pass.
        h: not read; what the weight's gradient needs.
        c: (T, S, H), as the forward pass returned it.
        dh: (T, S, H) float32, gradient of the loss by h.

    Returns:
        Gradients by z (T, S, 4H), of the gates' dtype, and by h0 and c0 (S, H), float32.
    """
    dz, dh0, dc0 = _recurrence(
        "lstm_backward",
        {"gates": gates, "weight": weight_hh, "c0": c0, "keep": keep, "c": c, "dh": dh},
        {"dz": gates.shape, "dh0": c0.shape, "dc0": c0.shape},
        c.shape,
        4,
    )
    return dz, dh0, dc0


def gru_forward(
    z: mx.array, weight_hh: mx.array, bias_hh: mx.array, h0: mx.array, keep: mx.array
) -> tuple[mx.array, mx.array]:
    """The GRU recurrence for T steps; gates r, u, n.

    Args:
        z: (T, S, 3H), the input's part of the gates, ``bias_ih`` included.
        weight_hh: (3H, H).
        bias_hh: (3H,).
        h0: (S, H) float32, the state before the first step.
        keep: (T, S) float32, what h is multiplied by before each step: 0 forgets.

    Returns:
        h (T, S, H) float32, and r, u, n and n's part of W h + b, (T, S, 4H), of z's dtype.
    """
    T, S, H = *z.shape[:2], h0.shape[1]
    h, gates = _recurrence(
        "gru_forward",
        {"z": z, "weight": weight_hh.T, "bias": bias_hh, "h0": h0, "keep": keep},
        {"h": (T, S, H), "gates": (T, S, 4 * H)},
        (T, S, H),
        3,
    )
    return h, gates


def gru_backward(
    gates: mx.array,
    weight_hh: mx.array,
    h0: mx.array,
    keep: mx.array,
    h: mx.array,
    dh: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """Gradient of ``gru_forward``'s h.

    Args:
        gates: (T, S, 4H), as the forward pass returned them.
        weight_hh: as given to the forward pass.
        h0: as given to the forward pass.
        keep: as given to the forward pass.
        h: (T, S, H), as the forward pass returned it.
        dh: (T, S, H) float32, gradient of the loss by h.

    Returns:
        Gradients by z and by W h + b, both (T, S, 3H) and of the gates' dtype, and by h0 (S, H),
        float32.
    """
    T, S, H = h.shape
    dz, dhidden, dh0 = _recurrence(
        "gru_backward",
        {"gates": gates, "weight": weight_hh, "h0": h0, "keep": keep, "h": h, "dh": dh},
        {"dz": (T, S, 3 * H), "dhidden": (T, S, 3 * H), "dh0": (S, H)},
        (T, S, H),
        3,
    )
    return dz, dhidden, dh0


def gelu_forward(x: mx.array) -> mx.array:
    """Exact GELU x Phi(x), elementwise: any shape."""
    return _launch("gelu_forward", {"x": x}, {"y": x.shape}, x.size, N=x.size)[0]


def gelu_backward(x: mx.array, dy: mx.array) -> mx.array:
    """Gradient of ``gelu_forward`` for dL/dy = ``dy``, both of one shape."""
    return _launch("gelu_backward", {"x": x, "dy": dy}, {"dx": x.shape}, x.size, N=x.size)[0]


def discount(delta: mx.array, decay: mx.array) -> mx.array:
    """Backward recursion of ``ops.discount``: (T - 1, N) twice -> (T, N), float32."""
    M, N = delta.shape
    shapes = {"adv": (M + 1, N)}
    return _launch("discount", {"delta": delta, "decay": decay}, shapes, N, M=M, N=N)[0]
