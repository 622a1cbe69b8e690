"""The MinGRU network: a linear recurrence whose gates don't depend on the state.

It is PufferLib's native network.

Tensors: ``{i}.weight`` (3H, H) of layer i.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import (
    default_on_cpu,
    input_gradient,
    split_factors,
    split_steps,
    weight_gradient,
)
from puffer_mlx.ops.gpu.launch import launch
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.linear import linear
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.ops.recurrence import kernel_state_inputs
from puffer_mlx.policy.activations import logistic, uniform
from puffer_mlx.policy.networks import FusedCase, GPULayers, NetworkFacts, NotDone, count_matches
from puffer_mlx.policy.networks.recurrent import Recurrent, through_layers
from puffer_mlx.system.plain_functions import record

NAME = "MinGRU"
Weights = list[dict[str, mx.array]]
State = list[mx.array]

DESCRIPTION = "MinGRU in one pass"
FOLDER = Path(__file__).parent
KERNELS_FILE = FOLDER / "kernels.metal.h"
LAYERS_FILE = FOLDER / "layers.metal.h"


def mingru_forward(u, x, first, not_done):
    """Compute the MinGRU recurrence on a GPU: see ``mingru_reference``. u is (T, S, 3H).

    Returns:
        Outputs of u's dtype, and float32 states, both (T, S, H).
    """
    T, S, H = x.shape
    states, steps = kernel_state_inputs([first], not_done)
    arrays = [u, x, *states, {"T": T, "S": S, "H": H, **steps}]
    return launch(KERNELS_FILE, "mingru_forward", arrays, [x.shape] * 2, S * H, FAST=1)


def mingru_backward(u, x, first, not_done, states, dout):
    """Compute the gradient of the MinGRU recurrence on a GPU from dout (T, S, H), dL/d(outputs).

    Returns:
        Gradients of ``u`` (T, S, 3H); of ``x`` (T, S, H), through the highway only; and of
        ``first`` (S, H), undefined if it is None. Each has the dtype of its array.
    """
    T, S, H = x.shape
    initial, steps = kernel_state_inputs([first], not_done)
    arrays = [u, x, *initial, states, dout, {"T": T, "S": S, "H": H, **steps}]
    shapes = [u.shape, x.shape, (1,) if first is None else (S, H)]
    return launch(KERNELS_FILE, "mingru_backward", arrays, shapes, S * H, FAST=1)


PLAIN_MODULES = ("policy.networks.mingru",)
FORWARD = Implementation(
    PLAIN_MODULES, DESCRIPTION, cpu="mingru_forward", gpu=mingru_forward, float32=(1,)
)
BACKWARD = Implementation(
    PLAIN_MODULES, DESCRIPTION, cpu="mingru_backward", gpu=mingru_backward, float32=(2,)
)


def mingru_reference(
    u: Sequence[mx.array], x: mx.array, first: mx.array | None, not_done: NotDone = None
) -> tuple[mx.array, mx.array]:
    """Compute the MinGRU recurrence in plain MLX.

    With ``u = [hidden, gate, projection]``, z = sigma(gate), q = sigma(projection) and
    g = hidden + 0.5 if hidden >= 0 else sigma(hidden):

        s_t = s_{t-1} + z_t (g_t - s_{t-1}),    out_t = x_t + q_t (s_t - x_t)

    Args:
        u: Three arrays (T, S, H).
        x: (T, S, H), input of the layer.
        first: (S, H), initial state; None for zeros.
        not_done: (T, S), factors that multiply the state at the start of each step; None for 1.

    Returns:
        Outputs and states, both (T, S, H).
    """
    hidden, gate, projection = u
    z = logistic(gate)
    q = logistic(projection)
    g = mx.where(hidden >= 0, hidden + 0.5, logistic(hidden))  # type: ignore
    state = mx.zeros(x.shape[1:]) if first is None else first
    states = []
    factors = split_factors(not_done, len(x))
    for z_t, g_t, not_done_t in zip(split_steps(z), split_steps(g), factors, strict=True):  # type: ignore
        state = state if not_done_t is None else state * not_done_t
        state = state + z_t * (g_t - state)
        states.append(state)
    stacked = mx.stack(states)  # (T, S, H)
    return x + q * (stacked - x), stacked  # type: ignore


@mx.custom_function
def _layer(x: mx.array, weight: mx.array, first: mx.array | None, not_done: NotDone):
    """Compute one MinGRU layer with the fused implementation.

    Args:
        x: (T, S, H).
        weight: (3H, H).
        first: (S, H), initial state, or None.
        not_done: (T, S), or None.

    Returns:
        Outputs, states, and the product u of input and weight.
    """
    T, S, H = x.shape
    u = linear(x.reshape(T * S, H), weight).reshape(T, S, 3 * H)
    out, states = FORWARD.choose()(u, x, first, not_done)
    return out, states, u


@_layer.vjp
def _layer_vjp(primals, cotangents, outputs):
    # `mingru` stops the gradient of the states, so only the outputs' cotangent can be non-zero.
    x, weight, first, not_done = primals
    _, states, u = outputs
    T, S, H = x.shape
    du, dx, dfirst = BACKWARD.choose()(u, x, first, not_done, states, cotangents[0])
    du = du.reshape(T * S, 3 * H)
    dweight = weight_gradient(du, x.reshape(T * S, H))
    dx = input_gradient(du, weight, dx.reshape(T * S, H))
    dnot_done = None if not_done is None else mx.zeros_like(not_done)
    return dx.reshape(T, S, H), dweight, None if first is None else dfirst, dnot_done


def mingru(
    x: mx.array, weight: mx.array, first: mx.array | None, not_done: NotDone = None
) -> tuple[mx.array, mx.array]:
    """Compute one MinGRU layer over T steps, fused if the device supports it.

    Args:
        x: (T, S, H).
        weight: (3H, H): the rows of hidden, gate and projection.
        first: Initial state (S, H), float32; None for zeros.
        not_done: (T, S) float32, factors that multiply the state at the start of each step; None
            for 1.

    Returns:
        Outputs (T, S, H) of the weight's dtype, and the state after the last step (S, H) float32,
        which has no gradient.
    """
    x = x.astype(weight.dtype)
    first = default_on_cpu(first, 0, x.shape[1:])
    if FORWARD.choose() is None:
        # Three products, because slices of one product are strided and have full-size gradients.
        u = [linear(x, rows) for rows in mx.split(weight, 3)]
        out, states = in_float32(mingru_reference, stay=(1,))(u, x, first, not_done)
    else:
        not_done = default_on_cpu(not_done, 1, x.shape[:2])
        out, states, _ = _layer(x, weight, first, not_done)  # type: ignore
    last = states.squeeze(0) if len(states) == 1 else states[-1]  # squeeze doesn't copy
    return out, mx.stop_gradient(last)


class MinGRU(Recurrent):
    """Network of L MinGRU layers with highway connections and H features, without biases.

    The state is a list of L arrays (n, H), initially 0, always >= 0.
    """

    def init(self, key: mx.array) -> Weights:
        """Return the initial weight (3H, H) of each MinGRU layer, uniform within ±1/sqrt(H)."""
        shape = (3 * self.hidden, self.hidden)
        keys = mx.random.split(key, self.layers)
        return [{"weight": uniform(k, shape, self.hidden**-0.5)} for k in keys]

    def scan(
        self, weights: Weights, h: mx.array, state: State | None, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the MinGRU network for T steps of S segments: see ``Network.scan``."""

        def layer(h: mx.array, tensors: Any, first: Any, not_done: NotDone) -> Any:
            return mingru(h, tensors["weight"], first, not_done)

        return through_layers(layer, weights, h, state, not_done)


# ---- other implementations: see ``networks/__init__.py`` -----------------------------------------


def _add_c_layers(step: Any, network: Any, weights: Weights) -> None:
    H = network.hidden
    for i, layer in enumerate(weights):
        step.add("mingru", str(i), layer, {"weight": (3 * H, H)}, H, i)


def _gpu_weights(weights: Weights) -> list[mx.array]:
    return [layer["weight"].T for layer in weights]


def _layers(names: Collection[str]) -> int:
    return 0 if count_matches(r"(\d+)\.bias", names) else count_matches(r"(\d+)\.weight", names)


def _run(low: list, rest: list, dout: mx.array) -> list[mx.array]:
    out, states = FORWARD.choose()(*low, *rest)
    return [out, *BACKWARD.choose()(*low, *rest, states, dout)]


def _reference(u: mx.array, *rest: mx.array) -> mx.array:
    return mingru_reference(mx.split(u, 3, axis=-1), *rest)[0]  # type: ignore


def _fused_case(T: int, S: int, H: int) -> FusedCase:
    return FusedCase([(T, S, 3 * H), (T, S, H)], [(S, H)], _run, _reference, (0, 1, 2))


FACTS = NetworkFacts(
    add_c_layers=_add_c_layers,
    gpu_layers=GPULayers(LAYERS_FILE, _gpu_weights),
    matrix_units=FOLDER,
    from_zeros=True,
    flat=lambda hidden, layers: {f"{i}.weight": 3 * hidden * hidden for i in range(layers)},
    layers=_layers,
    stacked_state=lambda state: {"state": state},
    fused_case=_fused_case,
    non_smooth=True,  # the candidate has a kink at 0
)

record(__name__)
