"""The LSTM network: PyTorch's LSTM layers, with gates i, f, g, o and two biases.

Tensors: ``{i}.weight_ih`` ... of layer i.
"""

import math
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import default_on_cpu, recurrent_weight_gradient, split_factors, split_steps
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

NAME = "LSTM"
Arrays = dict[str, mx.array]
Weights = list[Arrays]
State = list[Arrays]

DESCRIPTION = "LSTM in one pass"
FOLDER = Path(__file__).parent
KERNELS_FILE = FOLDER / "kernels.metal.h"
LAYERS_FILE = FOLDER / "layers.metal.h"


def lstm_forward(z, weight_hh, h0, c0, not_done):
    """Compute the LSTM recurrence on a GPU: see ``lstm_reference``.

    Returns:
        h and c (T, S, H), float32; and the activated gates (T, S, 4H), of z's dtype.
    """
    T, S, _ = z.shape
    H = weight_hh.shape[1]
    shapes = [(T, S, H), (T, S, H), z.shape]
    return launch_recurrence(
        *(KERNELS_FILE, "lstm_forward", [z, weight_hh.T], [h0, c0], not_done, []), shapes, gates=4
    )


def lstm_backward(gates, weight_hh, h0, c0, not_done, h, c, dh):
    """Compute the gradient of the LSTM recurrence on a GPU from dh (T, S, H), dL/d(outputs).

    h0 and h are unused.

    Returns:
        Gradients of z (T, S, 4H), of the gates' dtype; and of h0 and c0 (S, H), float32, undefined
        if these are None.
    """
    state = (1,) if c0 is None else c0.shape
    shapes = [gates.shape, state, state]
    return launch_recurrence(
        *(KERNELS_FILE, "lstm_backward", [gates, weight_hh], [c0], not_done, [c, dh]),
        shapes,
        gates=4,
    )


PLAIN_MODULES = ("policy.networks.lstm",)
FORWARD = Implementation(
    PLAIN_MODULES, DESCRIPTION, cpu="lstm_forward", gpu=lstm_forward, float32=(0, 1)
)
BACKWARD = Implementation(
    PLAIN_MODULES, DESCRIPTION, cpu="lstm_backward", gpu=lstm_backward, float32=(1, 2)
)


def lstm_reference(
    z: mx.array, weight_hh: mx.array, h: mx.array, c: mx.array, not_done: NotDone = None
) -> tuple[mx.array, mx.array, mx.array]:
    """Compute the LSTM recurrence in plain MLX.

        i, f, g, o = z_t + W h_{t-1}
        c_t = sigma(f) c_{t-1} + sigma(i) tanh(g),    h_t = sigma(o) tanh(c_t)

    Args:
        z: (T, S, 4H), the product of the input and its weight, plus both biases.
        weight_hh: (4H, H), W.
        h: (S, H), initial output.
        c: (S, H), initial cell state.
        not_done: (T, S), factors that multiply h and c at the start of each step; None for 1.

    Returns:
        Outputs (T, S, H), and h and c after the last step, (S, H).
    """
    out = []
    transposed = weight_hh.T
    for z_t, not_done_t in zip(split_steps(z), split_factors(not_done, len(z)), strict=True):
        if not_done_t is not None:
            h = h * not_done_t
            c = c * not_done_t
        i, f, g, o = mx.split(mx.addmm(z_t, h, transposed), 4, axis=-1)
        c = logistic(f) * c + logistic(i) * tanh(g)  # type: ignore
        h = logistic(o) * tanh(c)  # type: ignore
        out.append(h)
    return mx.stack(out), h, c


@mx.custom_function
def _recurrence(z, weight_hh, h0, c0, not_done):
    """Compute the LSTM recurrence of T steps with a fused kernel.

    Returns outputs h and cell states c (T, S, H), and activated gates (T, S, 4H).
    """
    return FORWARD.choose()(z, weight_hh, h0, c0, not_done)


@_recurrence.vjp
def _recurrence_vjp(primals, cotangents, outputs):
    # `lstm` stops the gradient of the last h and c, so only the outputs have a cotangent.
    _, weight_hh, h0, c0, not_done = primals
    h, c, gates = outputs
    dz, dh0, dc0 = BACKWARD.choose()(gates, weight_hh, h0, c0, not_done, h, c, cotangents[0])
    dweight = recurrent_weight_gradient(dz, h, h0, not_done)
    dstate = (None, None) if h0 is None else (dh0, dc0)
    return dz, dweight, *dstate, None if not_done is None else mx.zeros_like(not_done)


def lstm(
    x: mx.array, layer: Arrays, state: Arrays | None, not_done: NotDone = None
) -> tuple[mx.array, Arrays]:
    """Compute one LSTM layer over T steps, with one matrix product for the inputs of all steps.

    Args:
        x: (T, S, H).
        layer: Weights weight_ih and weight_hh (4H, H), bias_ih and bias_hh (4H,).
        state: Initial h and c, (S, H), float32; None for zeros.
        not_done: (T, S) float32, factors that multiply the state at the start of each step; None
            for 1.

    Returns:
        Outputs (T, S, H) of the weights' dtype, and the state after the last step, float32, which
        has no gradient.
    """
    T, S, H = x.shape
    bias = layer["bias_ih"] + layer["bias_hh"]
    z = linear(x.reshape(T * S, H), layer["weight_ih"], bias).reshape(T, S, 4 * H)
    h0, c0 = (default_on_cpu(state[name] if state else None, 0, (S, H)) for name in "hc")
    if FORWARD.choose() is None:
        plain = in_float32(lstm_reference, stay=(0, 1, 2))
        h0, c0 = (mx.zeros((S, H)) if first is None else first for first in (h0, c0))
        out, h, c = plain(z, layer["weight_hh"], h0, c0, not_done)
    else:
        not_done = default_on_cpu(not_done, 1, (T, S))
        out, cells, _ = _recurrence(z, layer["weight_hh"], h0, c0, not_done)  # type: ignore
        if T == 1:
            # One view of each output: MLX 0.32.4 can't compile two equal views of an output of a
            # function with several outputs ("_Map_base::at").
            h = out.squeeze(0)
            c = cells.squeeze(0)
            out = h[None]
        else:
            h = out[-1]
            c = cells[-1]
    return out.astype(z.dtype), {"h": mx.stop_gradient(h), "c": mx.stop_gradient(c)}


class LSTM(Recurrent):
    """Network of L LSTM layers with H features, as in PufferLib's torch classes.

    The state is a list of each layer's h and c, (n, H), initially 0.
    """

    def init(self, key: mx.array) -> Weights:
        """Return an LSTM network's initial weights: orthogonal (4H, H) matrices, and biases 0."""
        return [gated_weights(k, self.hidden, 4) for k in mx.random.split(key, self.layers)]

    def initial_state(self, n: int) -> State:
        """Return the LSTM network's initial recurrent state for n agents: zeros, float32."""
        return [{name: mx.zeros((n, self.hidden)) for name in "hc"} for _ in range(self.layers)]

    def scan(
        self, weights: Weights, h: mx.array, state: State | None, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the LSTM network for T steps of S segments: see ``Network.scan``."""
        return through_layers(lstm, weights, h, state, not_done)


# ---- other implementations: see ``networks/__init__.py`` -----------------------------------------


def _add_c_layers(step: Any, network: Any, weights: Weights) -> None:
    H = network.hidden
    for i, layer in enumerate(weights):
        packed = {
            "weight": mx.concatenate([layer["weight_ih"], layer["weight_hh"]], axis=1),
            "bias": layer["bias_ih"] + layer["bias_hh"],
        }
        step.add("lstm", str(i), packed, {"weight": (4 * H, 2 * H), "bias": (4 * H,)}, H, 2 * i)


def _gpu_weights(weights: Weights) -> list[mx.array]:
    return [
        array
        for layer in weights
        for array in (
            *(layer["weight_ih"].T, layer["weight_hh"].T),
            layer["bias_ih"] + layer["bias_hh"],
        )
    ]


def _run(low: list, rest: list, dh: mx.array) -> list[mx.array]:
    h, c, gates = FORWARD.choose()(*low, *rest)
    return [h, *BACKWARD.choose()(gates, low[1], *rest, h, c, dh.astype(mx.float32))]


def _fused_case(T: int, S: int, H: int) -> FusedCase:
    low = [(T, S, 4 * H), (4 * H, H)]
    return FusedCase(low, [(S, H), (S, H)], _run, lambda *a: lstm_reference(*a)[0], (0, 2, 3))


FACTS = NetworkFacts(
    add_c_layers=_add_c_layers,
    gpu_layers=GPULayers(LAYERS_FILE, _gpu_weights, shared_arrays=1),
    from_zeros=True,
    puffer3=lambda hidden: {
        f"0.{name}": math.prod(shape) for name, shape in gated_shapes(hidden, 4).items()
    },
    layers=lambda names: count_matches(r"(\d+)\.weight_ih", names),
    stacked_state=lambda state: {name: [layer[name] for layer in state] for name in "hc"},
    fused_case=_fused_case,
)

record(__name__)
