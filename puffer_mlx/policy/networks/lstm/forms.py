"""LSTM's other forms: see ``networks/forms.py``. Tensors: ``{i}.weight_ih`` ... of layer i."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.policy.networks.forms import (
    Forms,
    FusedCase,
    GPUStep,
    Puffer3Form,
    TorchForm,
    Weights,
    count,
)
from puffer_mlx.policy.networks.lstm.network import BACKWARD, FORWARD, lstm_reference
from puffer_mlx.policy.networks.recurrent import GATED, gated_onnx, gated_shapes

LAYERS = Path(__file__).with_name("layers.metal.h")


def _pack(step: Any, network: Any, weights: Weights) -> None:
    H = network.hidden
    for i, own in enumerate(weights):
        step.add("lstm", str(i), own, gated_shapes(H, 4), H, 2 * i)


def _gpu_weights(weights: Weights) -> list[mx.array]:
    return [
        array
        for own in weights
        for array in (own["weight_ih"].T, own["weight_hh"].T, own["bias_ih"] + own["bias_hh"])
    ]


def _onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    def layer(i: int, x: str, h: str, c: str) -> tuple[str, str, str]:
        gates = graph("Add", *gated_onnx(graph, f"network.{i}", x, h))
        inward, forget, new, outward = graph.split(gates, 1, [network.hidden] * 4)
        kept = graph("Mul", graph("Sigmoid", forget), c)
        c = graph("Add", kept, graph("Mul", graph("Sigmoid", inward), graph("Tanh", new)))
        h = graph("Mul", graph("Sigmoid", outward), graph("Tanh", c))
        return h, h, c

    return graph.through_layers(layer, network.layers, x, states)


def _torch_keys(layers: int) -> dict[str, list[str]]:
    return {
        f"{i}.{name}": [f"lstm.{name}_l{i}", f"cell.{i}.{name}"]
        for i in range(layers)
        for name in GATED
    }


def _puffer3_module(hidden: int) -> Any:
    from puffer_mlx.policy.networks.lstm.torch_module import Puffer3LSTM

    return Puffer3LSTM(hidden)


def _run(low: list, rest: list, dh: mx.array) -> list[mx.array]:
    h, c, gates = FORWARD.form()(*low, *rest)
    weight_hh, dh = low[1], dh.astype(mx.float32)
    return [h, *BACKWARD.form()(gates, weight_hh, *rest, h, c, dh)]


def _fused_case(T: int, S: int, H: int) -> FusedCase:
    low, states = [(T, S, 4 * H), (4 * H, H)], [(S, H), (S, H)]
    return FusedCase(low, states, _run, lambda *a: lstm_reference(*a)[0], (0, 2, 3))


FORMS = Forms(
    pack=_pack,
    gpu_step=GPUStep(LAYERS, _gpu_weights, memory=1),
    onnx=_onnx,
    from_zeros=True,
    torch=TorchForm(_torch_keys, lambda keys: count(r"lstm\.weight_ih_l(\d+)", keys)),
    puffer3=Puffer3Form(
        {f"0.{name}": [f"lstm.{name}_l0", f"cell.{name}"] for name in GATED},
        _puffer3_module,
        lambda hidden: 8 * hidden * hidden + 8 * hidden,
    ),
    layers=lambda names: count(r"(\d+)\.weight_ih", names),
    stacks=lambda state: {part: [layer[part] for layer in state] for part in "hc"},
    fused_case=_fused_case,
)
