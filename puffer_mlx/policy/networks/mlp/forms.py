"""MLP's other forms: see ``networks/forms.py``. Tensors: ``{i}.weight``, ``{i}.bias`` of layer i.

Its layers are products like the encoder's, so it has no C++ of its own.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.policy.activations import CODES, GAIN
from puffer_mlx.policy.networks.forms import Forms, GPUStep, Sb3Form, TorchForm, Weights, count

LAYERS = Path(__file__).with_name("layers.metal.h")


def _sb3(network: Any, activation: str) -> Any:
    return replace(network, activation=activation, gain=GAIN)


def _sb3_key(name: str) -> str:
    i, part = name.split(".")
    return f"{2 * int(i) + 2}.{part}"


def _pack(step: Any, network: Any, weights: Weights) -> None:
    H, code = network.hidden, CODES[network.activation]
    for i, own in enumerate(weights):
        step.add("dense", str(i), own, {"weight": (H, H), "bias": (H,)}, H, H, code)


def _gpu_weights(weights: Weights) -> list[mx.array]:
    return [array for own in weights for array in (own["weight"].T, own["bias"])]


def _onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    for i in range(network.layers):
        x = graph.activated(graph.product(x, f"network.{i}"), network.activation)
    return x, []


def _torch_keys(layers: int) -> dict[str, list[str]]:
    return {
        f"{i}.{name}": [f"net.{2 * i}.{name}"] for i in range(layers) for name in ("weight", "bias")
    }


FORMS = Forms(
    sb3=Sb3Form("mlp_extractor", _sb3, _sb3_key),
    pack=_pack,
    gpu_step=GPUStep(LAYERS, _gpu_weights, fits=lambda network: network.activation == "gelu"),
    onnx=_onnx,
    torch=TorchForm(_torch_keys, lambda keys: count(r"net\.(\d+)\.weight", keys)),
    layers=lambda names: count(r"(\d+)\.bias", names),
    stacks=lambda state: {},
)
