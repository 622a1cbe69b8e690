"""Build the ONNX nodes of one policy step, for ``formats/onnx.py``."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from puffer_mlx.checkpoint.rescaling import HIGH, LOW
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.policy import Policy
from puffer_mlx.vec import normalize


class Graph:
    """ONNX graph under construction: its nodes, and the weights that they use.

    ``prefix`` is added to weight names: ``critic.`` while the value network is built.
    """

    prefix = ""
    _encoder_prefix = "encoder."  # replaces ``encoder.`` in the names of weights

    def __init__(self, weights: dict[str, Any]) -> None:
        from onnx import numpy_helper

        self.nodes: list[Any] = []
        self._weights = weights
        self.initializers = [
            numpy_helper.from_array(np.array(w, np.float32), name) for name, w in weights.items()
        ]

    def node(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        """Add a node to the ONNX graph."""
        from onnx import helper

        names = [self._weight(x) or x for x in inputs]
        self.nodes.append(helper.make_node(kind, names, outputs, **attributes))

    def _weight(self, name: str) -> str | None:
        """Return the full name of a weight in the ONNX graph, with critic and encoder prefixes.

        Returns None if no weight has that name, for example for the output of a node.
        """
        full_name = self.prefix + re.sub(r"^encoder\.", self._encoder_prefix, name)
        return full_name if full_name in self._weights else None

    @contextmanager
    def with_encoder_prefix(self, prefix: str) -> Iterator[None]:
        """Replace the prefix ``encoder.`` in the weight names of the ONNX graph during a block."""
        self._encoder_prefix = prefix
        yield
        self._encoder_prefix = "encoder."

    def __call__(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node with one output to the ONNX graph. Returns the output's name.

        Inputs that aren't names become constants.
        """
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.node(kind, names, [output], **attributes)
        return output

    def constant(self, value: Any) -> str:
        """Add a constant to the ONNX graph, and return its name.

        Args:
            value: A number, stored as float32, or a list of numbers, stored as int64.
        """
        from onnx import numpy_helper

        dtype = np.int64 if isinstance(value, list) else np.float32
        name = f"constant_{len(self.nodes)}"
        tensor = numpy_helper.from_array(np.array(value, dtype))
        self.node("Constant", [], [name], value=tensor)
        return name

    def split(self, x: str, axis: int, sizes: list[int]) -> list[str]:
        """Split a tensor along an axis in the ONNX graph. Returns the names of the slices."""
        names = [f"split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        self.node("Split", [x, self.constant(sizes)], names, axis=axis)
        return names

    def linear(self, x: str, layer: str) -> str:
        """Add a linear layer to the ONNX graph: ``layer.weight`` times x, plus ``layer.bias``.

        The layer may lack a bias.
        """
        return self.gemm(x, f"{layer}.weight", f"{layer}.bias")

    def gemm(self, x: str, weight: str, bias: str) -> str:
        """Add a matrix product to the ONNX graph: weight times x (n, K), plus a bias if any."""
        inputs = [x, weight, bias] if self._weight(bias) else [x, weight]
        return self("Gemm", *inputs, transB=1)

    def gelu(self, x: str) -> str:
        """Add the exact GELU of a tensor to the ONNX graph. Returns the output's name."""
        one_plus = self("Add", self("Erf", self("Mul", x, 0.5**0.5)), 1.0)
        return self("Mul", self("Mul", x, 0.5), one_plus)

    def activation(self, x: str, name: str) -> str:
        """Add an activation to the ONNX graph, by its name in ``policy.activations``."""
        return self.gelu(x) if name == "gelu" else self(name.capitalize(), x)

    def interpolate(self, a: str, b: str, fraction: str) -> str:
        """Add a linear interpolation to the ONNX graph: a + fraction * (b - a)."""
        return self("Add", a, self("Mul", fraction, self("Sub", b, a)))

    def apply_layers(
        self,
        layer: Callable[..., tuple[str, ...]],
        count: int,
        x: str,
        states: list[str],
        last: Callable[[str], str] = lambda h: h,
    ) -> tuple[str, list[str]]:
        """Add all layers of a network to the ONNX graph, each with its slice of every state.

        Args:
            layer: (index, features, the layer's states...) -> features and the layer's next states.
            count: Number of layers L.
            x: Features (n, H).
            states: Names of the states, each (L, n, H).
            last: (features of the last layer) -> features.

        Returns:
            Features, and the next states.
        """
        layer_states = [
            [self("Squeeze", slice_, [0]) for slice_ in self.split(state, 0, [1] * count)]
            for state in states
        ]
        next_states = []
        for i, inputs in enumerate(zip(*layer_states, strict=True)):
            x, *outputs = layer(i, x, *inputs)
            next_states.append(outputs)
        x = last(x)
        stacks = [
            self("Concat", *(self("Unsqueeze", state, [0]) for state in layers), axis=0)
            for layers in zip(*next_states, strict=True)
        ]
        return x, stacks


# ---- observations --------------------------------------------------------------------------------


def normalized(graph: Graph, x: str, mean: str, variance: str) -> str:
    """Add the normalization of observations to an ONNX graph, as in ``vec/normalize.py``."""
    deviation = graph("Sqrt", graph("Add", variance, normalize.VARIANCE_EPSILON))
    scaled = graph("Div", graph("Sub", x, mean), deviation)
    return graph("Clip", scaled, -normalize.MAX_DEVIATIONS, normalize.MAX_DEVIATIONS)


# ---- the decoder ---------------------------------------------------------------------------------


def decode(graph: Graph, policy: Policy, h: str, value_features: str) -> dict[str, str]:
    """Add a policy's decoder to an ONNX graph. Returns the outputs by name, without the state.

    Args:
        graph: The graph.
        policy: Policy with the decoder.
        h: Features of the actor (n, H).
        value_features: Features of the value network (n, H).
    """
    action = policy.decoder.action
    if isinstance(policy.decoder, Fused):
        sizes = [action.logits, 1]
        outputs, value = graph.split(graph.gemm(h, "decoder.weight", ""), 1, sizes)
        if value_features != h:
            _, value = graph.split(graph.gemm(value_features, "decoder.weight", ""), 1, sizes)
    else:
        outputs = graph.linear(h, "decoder.actions")
        value = graph.linear(value_features, "decoder.value")
    value = graph("Squeeze", value, [1])
    if not action.continuous:
        return {"logits": outputs, "value": value}
    logstd = "decoder.logstd"
    if action.bounds:
        outputs, logstd = add_rescaling(graph, outputs, logstd)
    logstd = graph("Expand", logstd, graph("Shape", outputs))
    return {"mean": outputs, "logstd": logstd, "value": value}


def add_rescaling(graph: Graph, mean: str, logstd: str) -> tuple[str, str]:
    """Add the rescaling of actions to an ONNX graph, as in ``checkpoint/rescaling.py``.

    Returns:
        Means and log standard deviations in the environment's units.
    """
    half = graph("Mul", graph("Sub", HIGH, LOW), 0.5)
    centre = graph("Mul", graph("Add", HIGH, LOW), 0.5)
    mean = graph("Add", centre, graph("Mul", mean, half))
    return mean, graph("Add", logstd, graph("Log", half))
