"""MinGRU's other forms: see ``networks/forms.py``. Tensors: ``{i}.weight`` (3H, H) of layer i."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.policy.networks.forms import Forms, FusedCase, GPUStep, TorchForm, Weights, count
from puffer_mlx.policy.networks.mingru.network import BACKWARD, FORWARD, mingru_reference

LAYERS = Path(__file__).with_name("layers.metal.h")


def _pack(step: Any, network: Any, weights: Weights) -> None:
    H = network.hidden
    for i, own in enumerate(weights):
        step.add("mingru", str(i), own, {"weight": (3 * H, H)}, H, i)


def _gpu_weights(weights: Weights) -> list[mx.array]:
    return [own["weight"].T for own in weights]


def _onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    def layer(i: int, x: str, s: str) -> tuple[str, str]:
        u = graph.gemm(x, f"network.{i}.weight", "")
        hidden, gate, projection = graph.split(u, 1, [network.hidden] * 3)
        positive = graph("GreaterOrEqual", hidden, 0.0)
        g = graph("Where", positive, graph("Add", hidden, 0.5), graph("Sigmoid", hidden))
        s = graph.between(s, g, graph("Sigmoid", gate))
        return graph.between(x, s, graph("Sigmoid", projection)), s

    return graph.through_layers(layer, network.layers, x, states)


def _layers(names: Collection[str]) -> int:
    return 0 if count(r"(\d+)\.bias", names) else count(r"(\d+)\.weight", names)


def _torch_keys(layers: int) -> dict[str, list[str]]:
    return {f"{i}.weight": [f"layers.{i}.weight"] for i in range(layers)}


def _run(low: list, rest: list, dout: mx.array) -> list[mx.array]:
    out, states = FORWARD.form()(*low, *rest)
    return [out, *BACKWARD.form()(*low, *rest, states, dout)]


def _reference(u: mx.array, *rest: mx.array) -> mx.array:
    return mingru_reference(mx.split(u, 3, axis=-1), *rest)[0]  # type: ignore


def _fused_case(T: int, S: int, H: int) -> FusedCase:
    low, first = [(T, S, 3 * H), (T, S, H)], (S, H)
    return FusedCase(low, [first], _run, _reference, (0, 1, 2))


FORMS = Forms(
    pack=_pack,
    gpu_step=GPUStep(LAYERS, _gpu_weights),
    onnx=_onnx,
    from_zeros=True,
    torch=TorchForm(_torch_keys, lambda keys: count(r"layers\.(\d+)\.weight", keys)),
    flat=lambda hidden, layers: {f"{i}.weight": 3 * hidden * hidden for i in range(layers)},
    layers=_layers,
    stacks=lambda state: {"state": state},
    fused_case=_fused_case,
    kink=True,  # of the candidate, at 0
)
