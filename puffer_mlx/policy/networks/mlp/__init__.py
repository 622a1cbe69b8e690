"""The MLP network: linear layers with GELU, without a recurrent state.

Tensors: ``{i}.weight``, ``{i}.bias`` of layer i.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import dense
from puffer_mlx.ops.linear import ACTIVATION_CODES
from puffer_mlx.policy.activations import SB3_GAIN, orthogonal_layer, uniform_layer
from puffer_mlx.policy.networks import GPULayers, NetworkFacts, NotDone, count_matches
from puffer_mlx.system.plain_functions import record

NAME = "MLP"
LAYERS_FILE = Path(__file__).with_name("layers.metal.h")
Weights = list[dict[str, mx.array]]
State = list[mx.array]


@dataclass(frozen=True)
class MLP:
    """Network of L linear layers (H, H) with bias, each followed by an activation.

    It has no recurrent state: the state is an empty list.

    Args:
        hidden: Number H of features.
        layers: Number L of layers.
        activation: Name of the activation after each layer: "gelu" (exact), or with
            ``policy.dialect`` sb3 any name in ``ops.linear.ACTIVATION_CODES``.
        gain: Gain of orthogonal initial weights; None for uniform weights, as in PufferLib.
    """

    hidden: int
    layers: int
    activation: str = "gelu"
    gain: float | None = None

    def init(self, key: mx.array) -> Weights:
        """Return the initial weight (H, H) and bias (H,) of each layer of the MLP network.

        Both are uniform within ±1/sqrt(H); with a ``gain`` weights are orthogonal, and biases 0.
        """
        shape = (self.hidden, self.hidden)
        keys = mx.random.split(key, self.layers)
        if self.gain is None:
            return [uniform_layer(each, shape) for each in keys]
        return [orthogonal_layer(each, shape, self.gain) for each in keys]

    def initial_state(self, n: int) -> State:
        """Return an empty list, as this network has no recurrent state."""
        return []

    def scan(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the MLP network for T steps of S segments; ``not_done`` is unused.

        See ``Network.scan``.
        """
        out, state = self.step(weights, h.reshape(-1, self.hidden), state)
        return out.reshape(h.shape), state

    def step(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the MLP network for one step of n agents; ``not_done`` is unused.

        See ``Network.step``.
        """
        for layer in weights:
            h = dense(h, layer["weight"], layer["bias"], self.activation)
        return h, state


# ---- other implementations: see ``networks/__init__.py`` -----------------------------------------


def _with_activation(network: Any, activation: str) -> Any:
    return replace(network, activation=activation, gain=SB3_GAIN)


def _add_c_layers(step: Any, network: Any, weights: Weights) -> None:
    H = network.hidden
    code = ACTIVATION_CODES[network.activation]
    for i, layer in enumerate(weights):
        step.add("dense", str(i), layer, {"weight": (H, H), "bias": (H,)}, H, H, code)


def _has_gelu(network: Any) -> bool:
    return network.activation == "gelu"


def _gpu_weights(weights: Weights) -> list[mx.array]:
    return [array for layer in weights for array in (layer["weight"].T, layer["bias"])]


FACTS = NetworkFacts(
    with_activation=_with_activation,
    add_c_layers=_add_c_layers,
    gpu_layers=GPULayers(LAYERS_FILE, _gpu_weights, fits=_has_gelu),
    layers=lambda names: count_matches(r"(\d+)\.bias", names),
    stacked_state=lambda state: {},
)

record(__name__)
