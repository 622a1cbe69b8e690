"""Leaky's other forms."""

from puffer_mlx.policy.networks.leaky.network import (  # pyright: ignore[reportMissingImports]
    BACKWARD,
    FORWARD,
    leaky_reference,
)

from puffer_mlx.policy.networks.forms import Forms, FusedCase, TorchForm, count


def _pack(step, network, weights):
    H = network.hidden
    for i, own in enumerate(weights):
        step.add("leaky", str(i), own, {"gate": (H, H)}, H, i)


def _onnx(graph, network, x, states):
    def layer(i, x, s):
        z = graph("Sigmoid", graph.gemm(x, f"network.{i}.gate", ""))
        s = graph.between(s, x, z)
        return s, s

    return graph.through_layers(layer, network.layers, x, states)


def _run(low, rest, dout):
    states = FORWARD.form()(*low, *rest)
    return [states, *BACKWARD.form()(*low, *rest, states, dout)]


FORMS = Forms(
    pack=_pack,
    onnx=_onnx,
    torch=TorchForm(
        lambda layers: {f"{i}.gate": [f"gates.{i}.weight"] for i in range(layers)},
        lambda keys: count(r"gates\.(\d+)\.weight", keys),
    ),
    layers=lambda names: count(r"(\d+)\.gate", names),
    stacks=lambda state: {"state": state},
    fused_case=lambda T, S, H: FusedCase(
        [(T, S, H), (T, S, H)], [(S, H)], _run, leaky_reference, (0, 1, 2)
    ),
)
