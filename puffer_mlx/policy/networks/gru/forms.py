"""GRU's other forms: see ``networks/forms.py``.

Tensors: ``layers.{i}.weight_ih`` ... of layer i, and ``norm.weight``.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import EPSILON
from puffer_mlx.policy.networks.forms import Forms, FusedCase, GPUStep, TorchForm, Weights, count
from puffer_mlx.policy.networks.gru.network import BACKWARD, FORWARD, gru_reference
from puffer_mlx.policy.networks.recurrent import GATED, gated_onnx, gated_shapes

LAYERS = Path(__file__).with_name("layers.metal.h")


def _pack(step: Any, network: Any, weights: Weights) -> None:
    H = network.hidden
    for i, own in enumerate(weights["layers"]):
        step.add("gru", f"layers.{i}", own, gated_shapes(H, 3), H, i)
    step.add("residual_norm", "norm", weights["norm"], {"weight": (H,)}, H, EPSILON)


def _gpu_weights(weights: Weights) -> list[mx.array]:
    found = []
    for own in weights["layers"]:
        gates, new = mx.split(own["bias_ih"], [2 * own["weight_hh"].shape[1]])
        gates_hh, new_hh = mx.split(own["bias_hh"], [len(gates)])
        found += [own["weight_ih"].T, own["weight_hh"].T, gates + gates_hh, new, new_hh]
    return [*found, weights["norm"]["weight"]]


def _onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    H = network.hidden

    def layer(i: int, x: str, h: str) -> tuple[str, str]:
        of_input, of_state = gated_onnx(graph, f"network.layers.{i}", x, h)
        z_r, z_u, z_n = graph.split(of_input, 1, [H] * 3)
        h_r, h_u, h_n = graph.split(of_state, 1, [H] * 3)
        r = graph("Sigmoid", graph("Add", z_r, h_r))
        u = graph("Sigmoid", graph("Add", z_u, h_u))
        n = graph("Tanh", graph("Add", z_n, graph("Mul", r, h_n)))
        h = graph.between(n, h, u)
        return h, h

    def norm(h: str) -> str:
        x_and_h = graph("Add", h, x)
        mean = graph("ReduceMean", graph("Mul", x_and_h, x_and_h), axes=[-1])
        scaled = graph("Div", x_and_h, graph("Sqrt", graph("Add", mean, EPSILON)))
        return graph("Mul", scaled, "network.norm.weight")

    return graph.through_layers(layer, network.layers, x, states, last=norm)


def _torch_keys(layers: int) -> dict[str, list[str]]:
    keys = {
        f"layers.{i}.{name}": [f"gru.{name}_l{i}", f"cell.{i}.{name}"]
        for i in range(layers)
        for name in GATED
    }
    return {**keys, "norm.weight": ["norm.weight"]}


def _note(layers: int) -> str:
    if layers == 1:
        return ""
    return "PufferLib's GRU of several layers acts differently from how it trains"


def _run(low: list, rest: list, dh: mx.array) -> list[mx.array]:
    h, gates = FORWARD.form()(*low, *rest)
    dh = dh.astype(mx.float32)
    dz, _, dh0 = BACKWARD.form()(gates, low[1], *rest, h, dh)
    return [h, dz, dh0]


def _fused_case(T: int, S: int, H: int) -> FusedCase:
    low = [(T, S, 3 * H), (3 * H, H), (3 * H,)]
    return FusedCase(low, [(S, H)], _run, lambda *a: gru_reference(*a)[0], (0, 3))


FORMS = Forms(
    pack=_pack,
    gpu_step=GPUStep(LAYERS, _gpu_weights, memory=2),
    onnx=_onnx,
    from_zeros=True,
    torch=TorchForm(_torch_keys, lambda keys: count(r"gru\.weight_ih_l(\d+)", keys), _note),
    layers=lambda names: count(r"layers\.(\d+)\.weight_ih", names),
    stacks=lambda state: {"state": state},
    fused_case=_fused_case,
)
