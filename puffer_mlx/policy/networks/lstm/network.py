"""LSTM layers as PyTorch defines them: gates i, f, g, o, two biases."""

from dataclasses import dataclass

import mlx.core as mx

from puffer_mlx.ops import (
    FusedOperation,
    factors_of,
    full_on_cpu,
    linear,
    recurrent_weight_gradient,
    steps_of,
)
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.policy.activations import logistic, tanh
from puffer_mlx.policy.networks.lstm import gpu
from puffer_mlx.policy.networks.recurrent import Recurrent, gated_weights, through_layers

Weights = list[dict[str, mx.array]]
State = list[dict[str, mx.array]]

REFERENCE = Reference(
    "LSTM in one pass",
    ("policy.networks.lstm.network:lstm_reference",),
    test="tests/policy/test_networks.py",
    cost="the network takes several times as long",
)
FORWARD = FusedOperation("lstm_forward", gpu.lstm_forward, float32=(0, 1), reference=REFERENCE)
BACKWARD = FusedOperation("lstm_backward", gpu.lstm_backward, float32=(1, 2), reference=REFERENCE)


def lstm_reference(
    z: mx.array, weight_hh: mx.array, h: mx.array, c: mx.array, keep: mx.array | None = None
) -> tuple[mx.array, mx.array, mx.array]:
    """The LSTM recurrence in plain MLX: what the fused forms are checked against.

        i, f, g, o = z_t + W h_{t-1}
        c_t = sigma(f) c_{t-1} + sigma(i) tanh(g),    h_t = sigma(o) tanh(c_t)

    Args:
        z: (T, S, 4H), the input's part of the gates, biases included.
        weight_hh: (4H, H), W.
        h: (S, H), the output before the first step.
        c: (S, H), the cell before the first step.
        keep: (T, S), what h_{t-1} and c_{t-1} are multiplied by before step t; None is ones.

    Returns:
        Outputs (T, S, H), and h and c after the last step, (S, H).
    """
    out, transposed = [], weight_hh.T
    for z_t, keep_t in zip(steps_of(z), factors_of(keep, len(z)), strict=True):
        if keep_t is not None:
            h, c = h * keep_t, c * keep_t
        i, f, g, o = mx.split(mx.addmm(z_t, h, transposed), 4, axis=-1)
        c = logistic(f) * c + logistic(i) * tanh(g)  # type: ignore
        h = logistic(o) * tanh(c)  # type: ignore
        out.append(h)
    return mx.stack(out), h, c


@mx.custom_function
def _recurrence(
    z: mx.array,
    weight_hh: mx.array,
    h0: mx.array | None,
    c0: mx.array | None,
    keep: mx.array | None,
):
    """The same, fused: h (T, S, H), c (T, S, H), activated gates (T, S, 4H)."""
    return FORWARD.form()(z, weight_hh, h0, c0, keep)


@_recurrence.vjp
def _recurrence_vjp(primals, cotangents, outputs):
    # The last h and c leave `lstm` through stop_gradient: only the outputs have a cotangent.
    _, weight_hh, h0, c0, keep = primals
    h, c, gates = outputs
    dz, dh0, dc0 = BACKWARD.form()(gates, weight_hh, h0, c0, keep, h, c, cotangents[0])
    dweight = recurrent_weight_gradient(dz, h, h0, keep)
    dstate = (None, None) if h0 is None else (dh0, dc0)
    return dz, dweight, *dstate, None if keep is None else mx.zeros_like(keep)


def lstm(
    x: mx.array,
    layer: dict[str, mx.array],
    state: dict[str, mx.array] | None,
    keep: mx.array | None = None,
) -> tuple[mx.array, dict[str, mx.array]]:
    """One LSTM layer over T steps; the inputs of all steps go through one product.

    Args:
        x: (T, S, H).
        layer: weight_ih and weight_hh (4H, H), bias_ih and bias_hh (4H,).
        state: h and c, (S, H) float32, before the first step; None is zeros.
        keep: (T, S) float32, what the state is multiplied by before step t; None is ones.

    Returns:
        Outputs (T, S, H) of the weights' dtype, and the state after the last step, float32, which
        carries no gradient.
    """
    T, S, H = x.shape
    bias = layer["bias_ih"] + layer["bias_hh"]
    z = linear(x.reshape(T * S, H), layer["weight_ih"], bias).reshape(T, S, 4 * H)
    h0, c0 = (full_on_cpu(state[name] if state else None, 0, (S, H)) for name in "hc")
    if FORWARD.form() is None:
        plain = in_float32(lstm_reference, stay=(0, 1, 2))
        h0, c0 = (mx.zeros((S, H)) if first is None else first for first in (h0, c0))
        out, h, c = plain(z, layer["weight_hh"], h0, c0, keep)
    else:
        keep = full_on_cpu(keep, 1, (T, S))
        out, cells, _ = _recurrence(z, layer["weight_hh"], h0, c0, keep)  # type: ignore
        if T == 1:
            # One view of each output: MLX 0.32.4 can't compile two equal views of one output of a
            # function that has several ("_Map_base::at").
            h, c = out.squeeze(0), cells.squeeze(0)
            out = h[None]
        else:
            h, c = out[-1], cells[-1]
    return out.astype(z.dtype), {"h": mx.stop_gradient(h), "c": mx.stop_gradient(c)}


@dataclass(frozen=True)
class LSTM(Recurrent):
    """L LSTM layers, H wide, as PufferLib's torch classes.

    State: for each layer h and c, (n, H), 0 at first.
    """

    hidden: int
    layers: int

    def init(self, key: mx.array) -> Weights:
        """Orthogonal (4H, H) matrices, biases 0, as PufferLib 4.0 (3.0 keeps torch's default)."""
        return [gated_weights(k, self.hidden, 4) for k in mx.random.split(key, self.layers)]

    def initial_state(self, n: int) -> State:
        """Zeros, float32."""
        return [{name: mx.zeros((n, self.hidden)) for name in "hc"} for _ in range(self.layers)]

    def scan(
        self,
        weights: Weights,
        h: mx.array,
        state: State | None,
        keep: mx.array | None = None,
    ) -> tuple[mx.array, State]:
        """T steps of S segments: see ``networks.Network``."""
        return through_layers(lstm, weights, h, state, keep)
