"""Recurrent networks: ``init``, ``initial_state``, ``step`` (acting) and ``scan`` (training).

Weights and state are arguments; nothing here holds arrays. ``T`` times ``step`` equals ``scan``.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import fused, linear, linear_gradients, steps_of

Weights = list[dict[str, mx.array]]
State = list[mx.array]


@mx.custom_function
def logistic(x: mx.array) -> Any:
    """The logistic function from a rational approximation of tanh, absolute error 4e-7.

    Upstream acts with the same approximation. Arithmetic only, so ``mx.compile`` fuses and
    vectorises it; MLX's own sigmoid on a Linux CPU costs six times as much.
    """
    x = mx.clip(0.5 * x, -7.9053111, 7.9053111)
    s = x * x
    p = -8.60467152213735e-11 + s * (2.00018790482477e-13 - s * 2.76076847742355e-16)
    p = 1.48572235717979e-05 + s * (5.12229709037114e-08 + s * p)
    p = x * (4.89352455891786e-03 + s * (6.37261928875436e-04 + s * p))
    q = 1.18534705686654e-04 + s * 1.19825839466702e-06
    q = 4.89352518554385e-03 + s * (2.26843463243900e-03 + s * q)
    return 0.5 * (p / q) + 0.5


@logistic.vjp
def _logistic_vjp(_, cotangent, out):
    return cotangent * out * (1 - out)


def mingru_reference(u: mx.array, x: mx.array, first: mx.array) -> tuple[mx.array, mx.array]:
    """The MinGRU recurrence in plain MLX: what the fused forms are checked against.

    With ``u = [hidden | gate | projection]``, z = sigma(gate), q = sigma(projection) and
    g = hidden + 0.5 if hidden >= 0 else sigma(hidden):

        s_t = s_{t-1} + z_t (g_t - s_{t-1}),    out_t = x_t + q_t (s_t - x_t)

    Args:
        u: (T, S, 3H).
        x: (T, S, H), the layer's input.
        first: (S, H), the state before the first step.

    Returns:
        Outputs and states, both (T, S, H).
    """
    hidden, gate, projection = mx.split(u, 3, axis=-1)
    return _recurrence(hidden, gate, projection, x, first)


def _recurrence(hidden, gate, projection, x, first):
    """``mingru_reference`` of u's three parts, each (T, S, H)."""
    z, q = logistic(gate), logistic(projection)
    g = mx.where(hidden >= 0, hidden + 0.5, logistic(hidden))  # type: ignore
    state, states = first, []
    for z_t, g_t in zip(steps_of(z), steps_of(g), strict=True):  # type: ignore
        state = state + z_t * (g_t - state)
        states.append(state)
    stacked = mx.stack(states)  # (T, S, H)
    return x + q * (stacked - x), stacked


@mx.custom_function
def _layer(x: mx.array, weight: mx.array, first: mx.array):
    """One layer, fused: x (T, S, H), weight (3H, H), first (S, H) -> out, states, u."""
    T, S, H = x.shape
    u = linear(x.reshape(T * S, H), weight).reshape(T, S, 3 * H)
    out, states = fused().mingru_forward(u, x, first)
    return out, states, u


@_layer.vjp
def _layer_vjp(primals, cotangents, outputs):
    # The states leave `mingru` through stop_gradient, so only the outputs' cotangent can be
    # non-zero.
    x, weight, first = primals
    _, states, u = outputs
    T, S, H = x.shape
    du, dx, dfirst = fused().mingru_backward(u, x, first, states, cotangents[0])
    du = du.reshape(T * S, 3 * H)
    dx, dweight = linear_gradients(du, x.reshape(T * S, H), weight, add=dx.reshape(T * S, H))
    return dx.reshape(T, S, H), dweight, dfirst


def mingru(x: mx.array, weight: mx.array, first: mx.array) -> tuple[mx.array, mx.array]:
    """One MinGRU layer over T steps: the fused form where there is one, else the reference.

    Args:
        x: (T, S, H).
        weight: (3H, H), rows hidden, gate, projection.
        first: (S, H), the state before the first step.

    Returns:
        Outputs (T, S, H) and the state after the last step (S, H), which carries no gradient.
    """
    if fused() is None:
        # three products: the parts of one are strided, and their gradient a full array each
        hidden, gate, projection = (x @ rows.T for rows in mx.split(weight, 3))
        out, states = _recurrence(hidden, gate, projection, x, first)
    else:
        out, states, _ = _layer(x, weight, first)  # type: ignore
    last = states.squeeze(0) if len(states) == 1 else states[-1]  # squeezing copies nothing
    return out, mx.stop_gradient(last)


@dataclass(frozen=True)
class MinGRU:
    """L MinGRU layers with highway connections, H wide, no biases: upstream's native network.

    State: L arrays (n, H), 0 at first, always >= 0. It is not reset at terminals, as upstream.
    """

    hidden: int
    layers: int

    def init(self, key: mx.array) -> Weights:
        """Each layer's weight (3H, H), uniform within ±1/sqrt(H)."""
        bound = self.hidden**-0.5
        shape = (3 * self.hidden, self.hidden)
        return [
            {"weight": mx.random.uniform(-bound, bound, shape, key=k)}
            for k in mx.random.split(key, self.layers)
        ]

    def initial_state(self, n: int) -> State:
        """L arrays of zeros (n, H)."""
        return [mx.zeros((n, self.hidden)) for _ in range(self.layers)]

    def scan(self, weights: Weights, h: mx.array, state: State) -> tuple[mx.array, State]:
        """T steps of S segments.

        Args:
            weights: as ``init`` makes them.
            h: (T, S, H).
            state: L arrays (S, H), before the first step.

        Returns:
            Outputs (T, S, H) and the state after the last step, L arrays (S, H).
        """
        after = []
        for layer, first in zip(weights, state, strict=True):
            h, last = mingru(h, layer["weight"], first)
            after.append(last)
        return h, after

    def step(self, weights: Weights, h: mx.array, state: State) -> tuple[mx.array, State]:
        """One step of n agents: h (n, H), L states (n, H) -> outputs (n, H) and next states."""
        h, state = self.scan(weights, h[None], state)
        return h.squeeze(0), state
