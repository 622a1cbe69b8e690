"""The nodes of a policy's step, one of ONNX for each operation; ``formats/onnx.py`` uses them."""

from typing import Any

import numpy as np

from puffer_mlx.ops import EPSILON
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.encoders import AffineGelu
from puffer_mlx.policy.images import IMPALA, NATURE, Impala, Nature
from puffer_mlx.policy.networks import GRU, LSTM, MLP, MinGRU
from puffer_mlx.policy.policy import Policy
from puffer_mlx.vec import normalize


class Graph:
    """Nodes as they are added, and the weights they use."""

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

        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))

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
        inputs = [x, weight, bias] if bias in self._weights else [x, weight]
        return self("Gemm", *inputs, transB=1)

    def gelu(self, x: str) -> str:
        """Exact GELU."""
        one_plus = self("Add", self("Erf", self("Mul", x, 0.5**0.5)), 1.0)
        return self("Mul", self("Mul", x, 0.5), one_plus)

    def between(self, a: str, b: str, share: str) -> str:
        """From a to b: a + share * (b - a)."""
        return self("Add", a, self("Mul", share, self("Sub", b, a)))


# ---- observations and encoders -------------------------------------------------------------------


def normalised(graph: Graph, x: str, mean: str, variance: str) -> str:
    """Observations as the policy learned to see them: see ``vec/normalize.py``."""
    deviation = graph("Sqrt", graph("Add", variance, normalize.EPSILON))
    scaled = graph("Div", graph("Sub", x, mean), deviation)
    return graph("Clip", scaled, -normalize.LIMIT, normalize.LIMIT)


def encode(graph: Graph, encoder: Any, x: str) -> str:
    """Observations to features."""
    if isinstance(encoder, Nature | Impala):
        return _images(graph, encoder, x)
    h = graph.product(x, "encoder")
    return graph.gelu(h) if isinstance(encoder, AffineGelu) else h


def _images(graph: Graph, encoder: Any, x: str) -> str:
    x = graph("Reshape", x, [0, *encoder.shape])
    x = graph("Div", graph("Transpose", x, perm=[0, 3, 1, 2]), 255.0)
    if isinstance(encoder, Nature):
        for i, (_, _, stride) in enumerate(NATURE):
            x = graph("Relu", _conv(graph, f"encoder.convs.{i}", x, strides=[stride, stride]))
    else:
        for i in range(len(IMPALA)):
            x = _block(graph, f"encoder.blocks.{i}", x)
        x = graph("Relu", x)
    x = graph("Flatten", graph("Transpose", x, perm=[0, 2, 3, 1]))
    return graph("Relu", graph.product(x, "encoder.linear"))


def _conv(graph: Graph, layer: str, x: str, **attributes: Any) -> str:
    kernel = graph("Transpose", f"{layer}.weight", perm=[0, 3, 1, 2])
    return graph("Conv", x, kernel, f"{layer}.bias", **attributes)


def _block(graph: Graph, block: str, x: str) -> str:
    x = _conv(graph, f"{block}.conv", x, pads=[1] * 4)
    x = graph("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for part in "res0", "res1":
        inner = _conv(graph, f"{block}.{part}.conv0", graph("Relu", x), pads=[1] * 4)
        inner = _conv(graph, f"{block}.{part}.conv1", graph("Relu", inner), pads=[1] * 4)
        x = graph("Add", x, inner)
    return x


# ---- networks ------------------------------------------------------------------------------------


def remember(graph: Graph, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Features to features, and the names of the next state's tensors."""
    L, H = network.layers, network.hidden
    if isinstance(network, MLP):
        for i in range(L):
            x = graph.gelu(graph.product(x, f"network.{i}"))
        return x, []
    before = [
        [graph("Squeeze", part, [0]) for part in graph.split(state, 0, [1] * L)] for state in states
    ]
    step = {MinGRU: _mingru, LSTM: _lstm, GRU: _gru}[type(network)]
    h, after = x, []
    for i, state in enumerate(zip(*before, strict=True)):
        h, *made = step(graph, i, h, *state, H)
        after.append(made)
    if isinstance(network, GRU):
        h = _norm(graph, graph("Add", h, x))
    stacks = [
        graph("Concat", *(graph("Unsqueeze", one, [0]) for one in layers), axis=0)
        for layers in zip(*after, strict=True)
    ]
    return h, stacks


def _mingru(graph: Graph, i: int, x: str, s: str, H: int) -> tuple[str, ...]:
    u = graph.gemm(x, f"network.{i}.weight", "")
    hidden, gate, projection = graph.split(u, 1, [H] * 3)
    positive = graph("GreaterOrEqual", hidden, 0.0)
    g = graph("Where", positive, graph("Add", hidden, 0.5), graph("Sigmoid", hidden))
    s = graph.between(s, g, graph("Sigmoid", gate))
    return graph.between(x, s, graph("Sigmoid", projection)), s


def _gates(graph: Graph, layer: str, x: str, h: str) -> tuple[str, str]:
    """The input's and the state's part of a layer's gates."""
    across = graph.gemm(x, f"{layer}.weight_ih", f"{layer}.bias_ih")
    return across, graph.gemm(h, f"{layer}.weight_hh", f"{layer}.bias_hh")


def _lstm(graph: Graph, i: int, x: str, h: str, c: str, H: int) -> tuple[str, ...]:
    gates = graph("Add", *_gates(graph, f"network.{i}", x, h))
    inward, forget, new, outward = graph.split(gates, 1, [H] * 4)
    kept = graph("Mul", graph("Sigmoid", forget), c)
    c = graph("Add", kept, graph("Mul", graph("Sigmoid", inward), graph("Tanh", new)))
    h = graph("Mul", graph("Sigmoid", outward), graph("Tanh", c))
    return h, h, c


def _gru(graph: Graph, i: int, x: str, h: str, H: int) -> tuple[str, ...]:
    across, recurrent = _gates(graph, f"network.layers.{i}", x, h)
    z_r, z_u, z_n = graph.split(across, 1, [H] * 3)
    h_r, h_u, h_n = graph.split(recurrent, 1, [H] * 3)
    r = graph("Sigmoid", graph("Add", z_r, h_r))
    u = graph("Sigmoid", graph("Add", z_u, h_u))
    n = graph("Tanh", graph("Add", z_n, graph("Mul", r, h_n)))
    h = graph.between(n, h, u)
    return h, h


def _norm(graph: Graph, x: str) -> str:
    mean = graph("ReduceMean", graph("Mul", x, x), axes=[-1])
    scaled = graph("Div", x, graph("Sqrt", graph("Add", mean, EPSILON)))
    return graph("Mul", scaled, "network.norm.weight")


# ---- the decoder ---------------------------------------------------------------------------------


def decode(graph: Graph, policy: Policy, h: str) -> dict[str, str]:
    """The outputs but for the state, by name."""
    action = policy.decoder.action
    if isinstance(policy.decoder, Fused):
        y = graph.gemm(h, "decoder.weight", "")
        first, value = graph.split(y, 1, [action.logits, 1])
    else:
        first, value = (graph.product(h, f"decoder.{part}") for part in ("actions", "value"))
    value = graph("Squeeze", value, [1])
    if not action.continuous:
        return {"logits": first, "value": value}
    logstd = graph("Expand", "decoder.logstd", graph("Shape", first))
    return {"mean": first, "logstd": logstd, "value": value}
