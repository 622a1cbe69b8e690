"""MLP: products with GELU, without memory, with the interface of the recurrent networks.

Its layers are products like the encoder's, so it has no C++ of its own. Tensors: ``{i}.weight``,
``{i}.bias`` of layer i.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import dense
from puffer_mlx.ops.linear import CODES
from puffer_mlx.policy.activations import GAIN, orthogonal_layer, uniform_layer
from puffer_mlx.policy.networks import BlockLayer, Forms, GPUStep, count

NAME = "MLP"
LAYERS = Path(__file__).with_name("layers.metal.h")
Weights = list[dict[str, mx.array]]
State = list[mx.array]


@dataclass(frozen=True)
class MLP:
    """L times a product with bias (H to H) and an activation. State: none, an empty list.

    Args:
        hidden: H.
        layers: L.
        activation: as of ``ops.dense``: exact GELU, or what sb3's dialect is told.
        gain: of orthogonal initial weights, with biases 0, as sb3's; None: uniform, as PufferLib's.
    """

    hidden: int
    layers: int
    activation: str = "gelu"
    gain: float | None = None

    def init(self, key: mx.array) -> Weights:
        """Weights (H, H) and biases (H,): see ``gain``; uniform ones are within ±1/sqrt(H)."""
        shape, keys = (self.hidden, self.hidden), mx.random.split(key, self.layers)
        if self.gain is None:
            return [uniform_layer(each, shape) for each in keys]
        return [orthogonal_layer(each, shape, self.gain) for each in keys]

    def initial_state(self, n: int) -> State:
        """Nothing to remember."""
        return []

    def scan(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """T steps of S segments, (T, S, H) to (T, S, H); ``keep`` has nothing to act on."""
        out, state = self.step(weights, h.reshape(-1, self.hidden), state)
        return out.reshape(h.shape), state

    def step(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """One step of n agents, (n, H) to (n, H)."""
        for layer in weights:
            h = dense(h, layer["weight"], layer["bias"], self.activation)
        return h, state


# ---- other forms: see ``networks/__init__.py`` ---------------------------------------------------


def _with_activation(network: Any, activation: str) -> Any:
    return replace(network, activation=activation, gain=GAIN)


def _add_c_layers(step: Any, network: Any, weights: Weights) -> None:
    H, code = network.hidden, CODES[network.activation]
    for i, layer in enumerate(weights):
        step.add("dense", str(i), layer, {"weight": (H, H), "bias": (H,)}, H, H, code)


def _has_gelu(network: Any) -> bool:
    return network.activation == "gelu"


def _gpu_weights(weights: Weights) -> list[mx.array]:
    return [array for layer in weights for array in (layer["weight"].T, layer["bias"])]


FORMS = Forms(
    with_activation=_with_activation,
    add_c_layers=_add_c_layers,
    gpu_step=GPUStep(LAYERS, _gpu_weights, fits=_has_gelu),
    block_layer=BlockLayer(
        LAYERS.with_name("minibatch.metal.h"),
        ("weight", "bias"),
        rows=1,
        gates=1,
        fits=_has_gelu,
        faster=("fp32", "bf16"),
    ),
    layers=lambda names: count(r"(\d+)\.bias", names),
    stacked_state=lambda state: {},
)
