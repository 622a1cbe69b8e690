"""What a file's names, shapes and size tell of its policy, as settings of the configuration."""

import re
from pathlib import Path
from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.export.dialects import Tensors


def detect(tensors: dict[str, Any]) -> dict[str, str]:
    """Settings from tensors under our names; empty if they are of no class known here."""
    decoder = tensors.get("decoder.weight", tensors.get("decoder.actions.weight"))
    kinds = {
        "GRU": r"network\.layers\.(\d+)\.weight_ih",
        "LSTM": r"network\.(\d+)\.weight_ih",
        "MLP": r"network\.(\d+)\.bias",
        "MinGRU": r"network\.(\d+)\.weight",
    }
    network, layers = _count(kinds, tensors)
    if decoder is None or not network:
        return {}  # perhaps classes of the user's own: the configuration tells
    encoder = "DefaultEncoder"
    for name, kind in (("convs", "NatureEncoder"), ("blocks", "ImpalaEncoder")):
        if any(key.startswith(f"encoder.{name}.") for key in tensors):
            encoder = kind
    settings = _settings("native", network, encoder, decoder.shape[1], layers)
    if "decoder.weight" not in tensors:
        settings["policy.dialect"] = "torch"
        if encoder == "DefaultEncoder":
            del settings["policy.dialect"]  # or puffer3, which has a GELU: names don't tell
    return settings


def detect_torch(path: Path, tensors: Tensors) -> dict[str, str]:
    """Settings from the keys of a state_dict.

    Raises:
        UserError: it isn't a policy that puffer_mlx has.
    """
    if "policy.value.weight" in tensors and "lstm.weight_ih_l0" in tensors:
        H = tensors["policy.value.weight"].shape[1]
        return _settings("puffer3", "LSTM", "DefaultEncoder", H, 1)
    kinds = {
        "MinGRU": r"network\.layers\.(\d+)\.weight",
        "LSTM": r"network\.lstm\.weight_ih_l(\d+)",
        "GRU": r"network\.gru\.weight_ih_l(\d+)",
        "MLP": r"network\.net\.(\d+)\.weight",
    }
    network, layers = _count(kinds, tensors)
    encoders = {
        "encoder.encoder.weight": "DefaultEncoder",
        "encoder.network.7.weight": "NatureEncoder",
        "encoder.network.5.weight": "ImpalaEncoder",
    }
    encoder = next((kind for key, kind in encoders.items() if key in tensors), None)
    value = tensors.get("decoder.value_function.weight")
    if not network or encoder is None or value is None:
        shown = ", ".join(list(tensors)[:8]) + (", ..." if len(tensors) > 8 else "")
        raise UserError(
            f"{path} isn't a policy of PufferLib 4.0's classes, nor of 3.0's with LSTM: {shown}",
            "policies with encoders of an environment's own can't be imported",
        )
    return _settings("torch", network, encoder, value.shape[1], layers)


def _count(kinds: dict[str, str], tensors: dict[str, Any]) -> tuple[str, int]:
    """The first network that has tensors of its pattern, and how many."""
    for network, pattern in kinds.items():
        if found := [key for key in tensors if re.fullmatch(pattern, key)]:
            return network, len(found)
    return "", 0


def _settings(dialect: str, network: str, encoder: str, H: int, L: int) -> dict[str, str]:
    return {
        "policy.dialect": dialect,
        "policy.hidden_size": str(H),
        "policy.num_layers": str(L),
        "torch.network": network,
        "torch.encoder": encoder,
    }
