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
    """Nodes added so far, and the weights that they use.

    ``prefix`` is added to weight names: ``critic.`` while the value network is built.
    """

    prefix = ""
    _encoder = "encoder."  # replaces the prefix of an encoder's weights

    def __init__(self, weights: dict[str, Any]) -> None:
        from onnx import numpy_helper

        self.nodes: list[Any] = []
        self._weights = weights
        self.initialisers = [
            numpy_helper.from_array(np.array(w, np.float32), name) for name, w in weights.items()
        ]

    def node(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        """Add a node."""
        from onnx import helper

        names = [self._weight(x) or x for x in inputs]
        self.nodes.append(helper.make_node(kind, names, outputs, **attributes))

    def _weight(self, name: str) -> str | None:
        """Return a weight's full name, or None for an unknown name."""
        whole = self.prefix + re.sub(r"^encoder\.", self._encoder, name)
        return whole if whole in self._weights else None

    @contextmanager
    def below(self, name: str) -> Iterator[None]:
        """Use another prefix instead of ``encoder.`` for weights during the block."""
        self._encoder = name
        yield
        self._encoder = "encoder."

    def __call__(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node with one output and return its name. Inputs except names become constants."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.node(kind, names, [output], **attributes)
        return output

    def constant(self, value: Any) -> str:
        """Add a constant: a float32 number, or a list of int64 numbers. Return its name."""
        from onnx import numpy_helper

        dtype = np.int64 if isinstance(value, list) else np.float32
        name = f"constant_{len(self.nodes)}"
        tensor = numpy_helper.from_array(np.array(value, dtype))
        self.node("Constant", [], [name], value=tensor)
        return name

    def split(self, x: str, axis: int, sizes: list[int]) -> list[str]:
        """Return the parts of x along an axis."""
        names = [f"split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        self.node("Split", [x, self.constant(sizes)], names, axis=axis)
        return names

    def product(self, x: str, layer: str) -> str:
        """Return ``layer.weight`` times x, plus ``layer.bias`` if it exists."""
        return self.gemm(x, f"{layer}.weight", f"{layer}.bias")

    def gemm(self, x: str, weight: str, bias: str) -> str:
        """Return weight times x (n, K), plus the bias if it exists."""
        inputs = [x, weight, bias] if self._weight(bias) else [x, weight]
        return self("Gemm", *inputs, transB=1)

    def gelu(self, x: str) -> str:
        """Return the exact GELU of x."""
        one_plus = self("Add", self("Erf", self("Mul", x, 0.5**0.5)), 1.0)
        return self("Mul", self("Mul", x, 0.5), one_plus)

    def activated(self, x: str, activation: str) -> str:
        """Return an activation of x, by its name in ``policy.activations``."""
        return self.gelu(x) if activation == "gelu" else self(activation.capitalize(), x)

    def between(self, a: str, b: str, share: str) -> str:
        """Return a + share * (b - a)."""
        return self("Add", a, self("Mul", share, self("Sub", b, a)))

    def through_layers(
        self,
        layer: Callable[..., tuple[str, ...]],
        count: int,
        x: str,
        states: list[str],
        last: Callable[[str], str] = lambda h: h,
    ) -> tuple[str, list[str]]:
        """Apply all layers in order, each with its part of every state.

        Args:
            layer: (index, features, the layer's states...) -> features and the layer's next states.
            count: Number of layers L.
            x: Features (n, H).
            states: Names of the states, each (L, n, H).
            last: (features of the last layer) -> features.

        Returns:
            Features, and the next states.
        """
        before = [
            [self("Squeeze", part, [0]) for part in self.split(state, 0, [1] * count)]
            for state in states
        ]
        after = []
        for i, parts in enumerate(zip(*before, strict=True)):
            x, *next_parts = layer(i, x, *parts)
            after.append(next_parts)
        x = last(x)
        stacks = [
            self("Concat", *(self("Unsqueeze", one, [0]) for one in layers), axis=0)
            for layers in zip(*after, strict=True)
        ]
        return x, stacks


# ---- observations --------------------------------------------------------------------------------


def normalised(graph: Graph, x: str, mean: str, variance: str) -> str:
    """Return normalized observations, as ``vec/normalize.py`` computes them."""
    deviation = graph("Sqrt", graph("Add", variance, normalize.VARIANCE_EPSILON))
    scaled = graph("Div", graph("Sub", x, mean), deviation)
    return graph("Clip", scaled, -normalize.MAX_DEVIATIONS, normalize.MAX_DEVIATIONS)


# ---- the decoder ---------------------------------------------------------------------------------


def decode(graph: Graph, policy: Policy, h: str, value_features: str) -> dict[str, str]:
    """Return the outputs by name, without the state; ``value_features`` feed the value head."""
    action = policy.decoder.action
    if isinstance(policy.decoder, Fused):
        sizes = [action.logits, 1]
        first, value = graph.split(graph.gemm(h, "decoder.weight", ""), 1, sizes)
        if value_features != h:
            _, value = graph.split(graph.gemm(value_features, "decoder.weight", ""), 1, sizes)
    else:
        first = graph.product(h, "decoder.actions")
        value = graph.product(value_features, "decoder.value")
    value = graph("Squeeze", value, [1])
    if not action.continuous:
        return {"logits": first, "value": value}
    logstd = "decoder.logstd"
    if action.bounds:
        first, logstd = in_units(graph, first, logstd)
    logstd = graph("Expand", logstd, graph("Shape", first))
    return {"mean": first, "logstd": logstd, "value": value}


def in_units(graph: Graph, mean: str, logstd: str) -> tuple[str, str]:
    """Return means and log deviations in the environment's units (``checkpoint/rescaling.py``)."""
    half = graph("Mul", graph("Sub", HIGH, LOW), 0.5)
    centre = graph("Mul", graph("Add", HIGH, LOW), 0.5)
    mean = graph("Add", centre, graph("Mul", mean, half))
    return mean, graph("Add", logstd, graph("Log", half))
