"""MLP's other forms: see ``networks/forms.py``. Tensors: ``{i}.weight``, ``{i}.bias`` of layer i.

Its layers are products like the encoder's, so it has no C++ and no GPU text of its own.
"""

from typing import Any

from puffer_mlx.policy.networks.forms import Forms, TorchForm, Weights, count


def _pack(step: Any, weights: Weights, hidden: int) -> None:
    shapes = {"weight": (hidden, hidden), "bias": (hidden,)}
    for i, own in enumerate(weights):
        step.add("dense", str(i), own, shapes, hidden, hidden, True)  # True: with GELU


def _onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    for i in range(network.layers):
        x = graph.gelu(graph.product(x, f"network.{i}"))
    return x, []


def _torch_keys(layers: int) -> dict[str, list[str]]:
    return {
        f"{i}.{name}": [f"net.{2 * i}.{name}"] for i in range(layers) for name in ("weight", "bias")
    }


FORMS = Forms(
    pack=_pack,
    onnx=_onnx,
    torch=TorchForm(_torch_keys, lambda keys: count(r"net\.(\d+)\.weight", keys)),
    layers=lambda names: count(r"(\d+)\.bias", names),
    stacks=lambda state: {},
)
