"""The GRU network: PyTorch's GRU layers, then PufferLib's residual and norm.

The gates are r, u (PyTorch's z) and n. In this package z is a product of the input and its weight.

Tensors: ``layers.{i}.weight_ih`` ... of layer i, and ``norm.weight``.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import (
    EPSILON,
    add_rms_norm,
    bias_gradient,
    default_on_cpu,
    recurrent_weight_gradient,
    split_factors,
    split_steps,
)
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.linear import linear
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.ops.recurrence import launch_recurrence
from puffer_mlx.policy.activations import logistic, tanh
from puffer_mlx.policy.networks import FusedCase, GPULayers, NetworkFacts, NotDone, count_matches
from puffer_mlx.policy.networks.recurrent import (
    Recurrent,
    gated_shapes,
    gated_weights,
    through_layers,
)
from puffer_mlx.system.plain_functions import record

NAME = "GRU"
Weights = dict[str, Any]
State = list[mx.array]

DESCRIPTION = "GRU in one pass"
FOLDER = Path(__file__).parent
KERNELS_FILE = FOLDER / "kernels.metal.h"
LAYERS_FILE = FOLDER / "layers.metal.h"


def gru_forward(z, weight_hh, bias_hh, h0, not_done):
    """Compute the GRU recurrence of T steps on a GPU: see ``gru_reference``.

    Returns:
        h (T, S, H), float32; and r, u, n and hn, (T, S, 4H), of z's dtype.
    """
    T, S, _ = z.shape
    H = weight_hh.shape[1]
    inputs = [z, weight_hh.T, bias_hh]
    shapes = [(T, S, H), (T, S, 4 * H)]
    return launch_recurrence(
        KERNELS_FILE, "gru_forward", inputs, [h0], not_done, [], shapes, gates=3
    )


def gru_backward(gates, weight_hh, h0, not_done, h, dh):
    """Compute the gradient of the GRU recurrence on a GPU from dh (T, S, H), dL/d(outputs).

    Returns:
        The gradient of z, (T, S, 3H); the gradient of W h + b, (T, S, 3H); both have the gates'
        dtype. And the gradient of h0, (S, H) float32, undefined if h0 is None.
    """
    T, S, H = h.shape
    shapes = [(T, S, 3 * H), (T, S, 3 * H), (1,) if h0 is None else (S, H)]
    inputs = [gates, weight_hh]
    return launch_recurrence(
        KERNELS_FILE, "gru_backward", inputs, [h0], not_done, [h, dh], shapes, gates=3
    )


PLAIN_MODULES = ("policy.networks.gru",)
FORWARD = Implementation(
    PLAIN_MODULES, DESCRIPTION, cpu="gru_forward", gpu=gru_forward, float32=(0,)
)
BACKWARD = Implementation(
    PLAIN_MODULES, DESCRIPTION, cpu="gru_backward", gpu=gru_backward, float32=(2,)
)


def gru_reference(
    z: mx.array, weight_hh: mx.array, bias_hh: mx.array, h: mx.array, not_done: NotDone = None
) -> tuple[mx.array, mx.array]:
    """Compute the GRU recurrence in plain MLX.

        [hr | hz | hn] = W h_{t-1} + b
        r = sigma(z_r + hr),  u = sigma(z_z + hz),  n = tanh(z_n + r hn)
        h_t = n + u (h_{t-1} - n)

    Args:
        z: (T, S, 3H), the product of the input and its weight, plus its bias.
        weight_hh: (3H, H), W.
        bias_hh: (3H,), b.
        h: (S, H), initial state.
        not_done: (T, S), factors that multiply the state at the start of each step; None for 1.

    Returns:
        States (T, S, H), which are also the outputs; and the last state (S, H).
    """
    out = []
    transposed = weight_hh.T
    for z_t, not_done_t in zip(split_steps(z), split_factors(not_done, len(z)), strict=True):
        h = h if not_done_t is None else h * not_done_t
        z_r, z_u, z_n = mx.split(z_t, 3, axis=-1)
        h_r, h_u, h_n = mx.split(mx.addmm(bias_hh, h, transposed), 3, axis=-1)
        r = logistic(z_r + h_r)
        u = logistic(z_u + h_u)
        n = tanh(z_n + r * h_n)  # type: ignore
        h = n + u * (h - n)  # type: ignore
        out.append(h)
    return mx.stack(out), h


@mx.custom_function
def _recurrence(z, weight_hh, bias_hh, h0, not_done):
    """Compute the GRU recurrence of T steps with a fused kernel: see ``gru_reference``.

    Returns:
        The states h (T, S, H), and one array (T, S, 4H) of r, u, n and hn for the gradient.
    """
    return FORWARD.choose()(z, weight_hh, bias_hh, h0, not_done)


@_recurrence.vjp
def _recurrence_vjp(primals, cotangents, outputs):
    # `gru` stops the gradient of the last state, so only the outputs have a cotangent.
    _, weight_hh, _, h0, not_done = primals
    h, gates = outputs
    dz, dhidden, dh0 = BACKWARD.choose()(gates, weight_hh, h0, not_done, h, cotangents[0])
    dweight = recurrent_weight_gradient(dhidden, h, h0, not_done)
    dbias = bias_gradient(dhidden.reshape(-1, dhidden.shape[-1]))
    dnot_done = None if not_done is None else mx.zeros_like(not_done)
    return dz, dweight, dbias, None if h0 is None else dh0, dnot_done


def gru(
    x: mx.array, layer: Weights, h0: mx.array | None, not_done: NotDone = None
) -> tuple[mx.array, mx.array]:
    """Compute one GRU layer over T steps, with one matrix product for the inputs of all steps.

    Args:
        x: (T, S, H).
        layer: Weights weight_ih and weight_hh (3H, H), bias_ih and bias_hh (3H,).
        h0: Initial state (S, H), float32; None for zeros.
        not_done: (T, S) float32, factors that multiply the state at the start of each step; None
            for 1.

    Returns:
        Outputs (T, S, H) of the weights' dtype, and the last state (S, H), float32, which has no
        gradient.
    """
    T, S, H = x.shape
    z = linear(x.reshape(T * S, H), layer["weight_ih"], layer["bias_ih"]).reshape(T, S, 3 * H)
    h0 = default_on_cpu(h0, 0, (S, H))
    if FORWARD.choose() is None:
        plain = in_float32(gru_reference, stay=(0, 1))
        h0 = mx.zeros((S, H)) if h0 is None else h0
        out, last = plain(z, layer["weight_hh"], layer["bias_hh"], h0, not_done)
    else:
        not_done = default_on_cpu(not_done, 1, (T, S))
        out, _ = _recurrence(z, layer["weight_hh"], layer["bias_hh"], h0, not_done)  # type: ignore
        last = out.squeeze(0) if T == 1 else out[-1]
    return out.astype(z.dtype), mx.stop_gradient(last)


class GRU(Recurrent):
    """Network of L GRU layers with H features, followed by RMSNorm(GRU(x) + x).

    PufferLib's torch class adds and normalises once after all layers in training, but after every
    layer when it acts. Here both do it once, which is the same for one layer.

    The state is a list of L arrays (n, H), initially 0.
    """

    def init(self, key: mx.array) -> Weights:
        """Return a GRU network's initial weights: orthogonal (3H, H), biases 0, and a norm of 1."""
        keys = mx.random.split(key, self.layers)
        return {
            "layers": [gated_weights(k, self.hidden, 3) for k in keys],
            "norm": {"weight": mx.ones(self.hidden)},
        }

    def scan(
        self, weights: Weights, h: mx.array, state: State | None, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the GRU network for T steps of S segments: see ``Network.scan``."""
        h = h.astype(weights["norm"]["weight"].dtype)
        out, state = through_layers(gru, weights["layers"], h, state, not_done)
        flat = out.reshape(-1, self.hidden), h.reshape(-1, self.hidden)
        return add_rms_norm(*flat, weights["norm"]["weight"]).reshape(h.shape), state


# ---- other implementations: see ``networks/__init__.py`` -----------------------------------------


def _add_c_layers(step: Any, network: Any, weights: Weights) -> None:
    H = network.hidden
    for i, layer in enumerate(weights["layers"]):
        step.add("gru", f"layers.{i}", layer, gated_shapes(H, 3), H, i)
    step.add("residual_norm", "norm", weights["norm"], {"weight": (H,)}, H, EPSILON)


def _gpu_weights(weights: Weights) -> list[mx.array]:
    arrays = []
    for layer in weights["layers"]:
        gates, new = mx.split(layer["bias_ih"], [2 * layer["weight_hh"].shape[1]])
        gates_hh, new_hh = mx.split(layer["bias_hh"], [len(gates)])
        arrays += [layer["weight_ih"].T, layer["weight_hh"].T, gates + gates_hh, new, new_hh]
    return [*arrays, weights["norm"]["weight"]]


def _run(low: list, rest: list, dh: mx.array) -> list[mx.array]:
    """Run the fused GRU, forward and backward; return its states and gradients of z and h0."""
    h, gates = FORWARD.choose()(*low, *rest)
    dz, _, dh0 = BACKWARD.choose()(gates, low[1], *rest, h, dh.astype(mx.float32))
    return [h, dz, dh0]


def _fused_case(T: int, S: int, H: int) -> FusedCase:
    low = [(T, S, 3 * H), (3 * H, H), (3 * H,)]
    return FusedCase(low, [(S, H)], _run, lambda *a: gru_reference(*a)[0], (0, 3))


FACTS = NetworkFacts(
    add_c_layers=_add_c_layers,
    gpu_layers=GPULayers(LAYERS_FILE, _gpu_weights, shared_arrays=2),
    from_zeros=True,
    layers=lambda names: count_matches(r"layers\.(\d+)\.weight_ih", names),
    stacked_state=lambda state: {"state": state},
    fused_case=_fused_case,
)

record(__name__)
