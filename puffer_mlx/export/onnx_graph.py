"""The nodes of a policy's step, one of ONNX for each operation; ``formats/onnx.py`` uses them."""

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
    """Nodes as they are added, and the weights they use.

    ``prefix`` is what the names of weights are given without: ``critic.`` while that is built.
    """

    prefix = ""
    _encoder = "encoder."  # what an encoder's own weights are below

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
        """A weight's whole name; None if there is none."""
        whole = self.prefix + re.sub(r"^encoder\.", self._encoder, name)
        return whole if whole in self._weights else None

    @contextmanager
    def below(self, name: str) -> Iterator[None]:
        """Weights ``encoder.*`` are those below another name meanwhile: of an encoder's part."""
        self._encoder = name
        yield
        self._encoder = "encoder."

    def __call__(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node with one output; an input that isn't a name is a constant."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.node(kind, names, [output], **attributes)
        return output

    def constant(self, value: Any) -> str:
        """A number, or a list of whole numbers."""
        from onnx import numpy_helper

        dtype = np.int64 if isinstance(value, list) else np.float32
        name = f"constant_{len(self.nodes)}"
        tensor = numpy_helper.from_array(np.array(value, dtype))
        self.node("Constant", [], [name], value=tensor)
        return name

    def split(self, x: str, axis: int, sizes: list[int]) -> list[str]:
        """Parts of x along an axis."""
        names = [f"split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        self.node("Split", [x, self.constant(sizes)], names, axis=axis)
        return names

    def product(self, x: str, layer: str) -> str:
        """``layer.weight`` times x, plus ``layer.bias`` if there is one."""
        return self.gemm(x, f"{layer}.weight", f"{layer}.bias")

    def gemm(self, x: str, weight: str, bias: str) -> str:
        """Weight times x (n, K), plus the bias if there is one."""
        inputs = [x, weight, bias] if self._weight(bias) else [x, weight]
        return self("Gemm", *inputs, transB=1)

    def gelu(self, x: str) -> str:
        """Exact GELU."""
        one_plus = self("Add", self("Erf", self("Mul", x, 0.5**0.5)), 1.0)
        return self("Mul", self("Mul", x, 0.5), one_plus)

    def activated(self, x: str, activation: str) -> str:
        """An activation by its name in ``policy.activations``."""
        return self.gelu(x) if activation == "gelu" else self(activation.capitalize(), x)

    def between(self, a: str, b: str, share: str) -> str:
        """From a to b: a + share * (b - a)."""
        return self("Add", a, self("Mul", share, self("Sub", b, a)))

    def through_layers(
        self,
        layer: Callable[..., tuple[str, ...]],
        count: int,
        x: str,
        states: list[str],
        last: Callable[[str], str] = lambda h: h,
    ) -> tuple[str, list[str]]:
        """Layers one after the other, each with its part of every state.

        Args:
            layer: of (number, features, its parts of the states): features and its next parts.
            count: L, how many layers.
            x: features (n, H).
            states: each (L, n, H).
            last: of the last layer's features.

        Returns:
            Features and the next states.
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
    """Observations as the policy learned to see them: see ``vec/normalize.py``."""
    deviation = graph("Sqrt", graph("Add", variance, normalize.EPSILON))
    scaled = graph("Div", graph("Sub", x, mean), deviation)
    return graph("Clip", scaled, -normalize.LIMIT, normalize.LIMIT)


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
    """Means and log deviations in the environment's units: see ``checkpoint/rescaling.py``."""
    half = graph("Mul", graph("Sub", HIGH, LOW), 0.5)
    centre = graph("Mul", graph("Add", HIGH, LOW), 0.5)
    mean = graph("Add", centre, graph("Mul", mean, half))
    return mean, graph("Add", logstd, graph("Log", half))
