"""Leaky, a network that only tests have: `tests/project/test_planted_parts.py`."""

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops import input_gradient, split_factors, split_steps, weight_gradient
from puffer_mlx.ops.gpu.launch import launch
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.linear import linear
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.policy.activations import logistic, uniform
from puffer_mlx.policy.networks import FusedCase, NetworkFacts, count_matches
from puffer_mlx.policy.networks.recurrent import Recurrent, through_layers
from puffer_mlx.system.plain_functions import record

NAME = "Leaky"
TEXT = Path(__file__).with_name("kernels.metal.h")


def leaky_forward(u, x, first, not_done):
    """Compute the planted leaky network's states (T, S, H) on a GPU, float32.

    See ``leaky_reference``.
    """
    T, S, H = x.shape
    inputs = {"u": u, "x": x, "first": first, "not_done": not_done}
    return launch(TEXT, "leaky_forward", inputs, {"states": x.shape}, S * H, T=T, S=S, H=H)[0]


def leaky_backward(u, x, first, not_done, states, dout):
    """Compute the planted leaky network's gradients on a GPU: of u, x and first.

    The gradient of x excludes its effect on u.
    """
    T, S, H = x.shape
    inputs = {"u": u, "x": x, "first": first, "not_done": not_done, "states": states, "dout": dout}
    outputs = {"du": x.shape, "dx": x.shape, "dfirst": first.shape}
    return tuple(launch(TEXT, "leaky_backward", inputs, outputs, S * H, T=T, S=S, H=H))


DESCRIPTION = "Leaky in one pass"
FORWARD = Implementation((), DESCRIPTION, cpu="leaky_forward", gpu=leaky_forward, float32=(0,))
BACKWARD = Implementation((), DESCRIPTION, cpu="leaky_backward", gpu=leaky_backward, float32=(2,))


def leaky_reference(u, x, first, not_done=None):
    """Compute the states of the leaky network in plain MLX.

        s = n_t s_{t-1};  s_t = s + sigma(u_t) (x_t - s)

    Args:
        u: (T, S, H), gates before the sigmoid.
        x: (T, S, H), inputs.
        first: (S, H), initial state.
        not_done: (T, S), the factors n; None for 1.

    Returns:
        States (T, S, H).
    """
    state, states = first, []
    z: mx.array = logistic(u)  # type: ignore
    for z_t, x_t, not_done_t in zip(
        split_steps(z), split_steps(x), split_factors(not_done, len(x)), strict=True
    ):
        state = state if not_done_t is None else state * not_done_t
        state = state + z_t * (x_t - state)
        states.append(state)
    return mx.stack(states)


_reference_of_any = in_float32(leaky_reference, stay=(0,))


@mx.custom_function
def _layer(x, weight, first, not_done):
    T, S, H = x.shape
    u = linear(x.reshape(T * S, H), weight).reshape(T, S, H)
    return FORWARD.choose()(u, x, first, not_done), u


@_layer.vjp
def _layer_vjp(primals, cotangents, outputs):
    x, weight, first, not_done = primals
    states, u = outputs
    H = x.shape[-1]
    du, dx, dfirst = BACKWARD.choose()(u, x, first, not_done, states, cotangents[0])
    du = du.reshape(-1, H)
    dx = input_gradient(du, weight, dx.reshape(-1, H))
    dweight = weight_gradient(du, x.reshape(-1, H))
    return dx.reshape(x.shape), dweight, dfirst, mx.zeros_like(not_done)


def leaky(x, layer, first, not_done=None):
    """Evaluate one layer of the planted leaky network over T steps.

    Returns the states (T, S, H) and the last state (S, H).
    """
    weight = layer["gate"]
    x = x.astype(weight.dtype)
    if FORWARD.choose() is None:
        u = linear(x.reshape(-1, x.shape[-1]), weight).reshape(x.shape)
        states = _reference_of_any(u, x, first, not_done)
    else:
        not_done = mx.ones(x.shape[:2]) if not_done is None else not_done
        states, _ = _layer(x, weight, first, not_done)  # type: ignore
    if len(states) == 1:  # one view of it: see ``lstm`` in policy/networks/lstm
        last = states.squeeze(0)
        states = last[None]
    else:
        last = states[-1]
    return states.astype(x.dtype), mx.stop_gradient(last)


@dataclass(frozen=True)
class Leaky(Recurrent):
    """Network of L leaky layers with H features. The state is a list of L arrays (n, H)."""

    hidden: int
    layers: int

    def init(self, key):
        """Return the initial gate weight (H, H) of each leaky layer."""
        keys = mx.random.split(key, self.layers)
        shape = (self.hidden, self.hidden)
        return [{"gate": uniform(k, shape, self.hidden**-0.5)} for k in keys]

    def initial_state(self, n):
        """Return the leaky network's initial state: zeros (n, H) for each layer."""
        return [mx.zeros((n, self.hidden)) for _ in range(self.layers)]

    def scan(self, weights, h, state, not_done=None):
        """Evaluate the leaky network for T steps of S segments: see ``Network.scan``."""
        return through_layers(leaky, weights, h, state, not_done)


def _add_c_layers(step, network, weights):
    H = network.hidden
    for i, own in enumerate(weights):
        step.add("leaky", str(i), own, {"gate": (H, H)}, H, i)


def _run(low, rest, dout):
    states = FORWARD.choose()(*low, *rest)
    return [states, *BACKWARD.choose()(*low, *rest, states, dout)]


FACTS = NetworkFacts(
    add_c_layers=_add_c_layers,
    layers=lambda names: count_matches(r"(\d+)\.gate", names),
    stacked_state=lambda state: {"state": state},
    fused_case=lambda T, S, H: FusedCase(
        [(T, S, H), (T, S, H)], [(S, H)], _run, leaky_reference, (0, 1, 2)
    ),
)


record(__name__)
