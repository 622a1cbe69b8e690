"""Infer a policy's settings from the names and shapes of its tensors."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import export_forms as encoder_forms
from puffer_mlx.export.networks import export_forms
from puffer_mlx.export.weight_layouts import Tensors
from puffer_mlx.policy.encoders.catalog import ENCODER_FACTS as ENCODERS
from puffer_mlx.policy.encoders.default import NAME as DEFAULT
from puffer_mlx.policy.networks.catalog import NETWORK_FACTS, networks_with


def detect(tensors: dict[str, Any]) -> dict[str, str]:
    """Return settings from tensors under our names; {} if no built-in class fits."""
    decoder = _matrix(tensors, "decoder.weight", "decoder.actions.weight")
    network, layers = _network(
        tensors, {name: forms.layers for name, forms in NETWORK_FACTS.items()}
    )
    if decoder is None or not network:
        return {}  # maybe custom classes, named in the configuration
    encoder = _encoder(tensors)
    settings = _settings("native", network, encoder, decoder.shape[1], layers)
    if any(name.startswith("critic.") for name in tensors):
        settings["policy.separate_value"] = "True"
    if "decoder.weight" not in tensors:
        settings["policy.dialect"] = "torch"
        if encoder == DEFAULT:
            del settings["policy.dialect"]  # puffer3 has a GELU and the same names
    return settings


def detect_torch(path: Path, tensors: Tensors) -> dict[str, str]:
    """Return settings from the tensors of a state_dict.

    Raises:
        UserError: If no built-in policy fits.
    """
    if _matrix(tensors, "action_net.weight") is not None and (settings := _sb3_settings(tensors)):
        return settings
    value = _matrix(tensors, "policy.value.weight")
    if value is not None and (wrapped := _wrapped(tensors)):
        return _settings("puffer3", wrapped, DEFAULT, value.shape[1], 1)
    classes = {name: forms.torch for name, forms in export_forms().items() if forms.torch}
    network, layers = _network(tensors, {name: form.layers for name, form in classes.items()})
    encoder = _torch_encoder(tensors)
    value = _matrix(tensors, "decoder.value_function.weight")
    if not network or not encoder or value is None:
        shown = ", ".join(list(tensors)[:8]) + (", ..." if len(tensors) > 8 else "")
        raise UserError(
            f"{path} isn't a policy of PufferLib 4.0's classes, nor of 3.0's with"
            f" {' or '.join(networks_with('puffer3'))}, nor Stable-Baselines3's: {shown}",
            "policies with encoders of an environment's own can't be imported",
        )
    return _settings("torch", network, encoder, value.shape[1], layers)


def _sb3_settings(tensors: Tensors) -> dict[str, str]:
    """Return settings of a Stable-Baselines3 policy, or {} for other tensors.

    The keys don't determine the activation.
    """
    for name, forms in export_forms().items():
        begin = f"{forms.sb3.module}.policy_net." if forms.sb3 else "?"
        actor = {key: w for key, w in tensors.items() if key.startswith(begin)}
        if not actor:
            continue
        others = [tensors.get(key.replace("policy_net", "value_net")) for key in actor]
        layers = sum(key.endswith(".weight") for key in actor) - 1
        H = tensors["action_net.weight"].shape[1]
        settings = _settings("sb3", name, DEFAULT, H, layers)
        pairs = zip(actor.values(), others, strict=True)
        if not all(other is not None and np.array_equal(w, other) for w, other in pairs):
            settings["policy.separate_value"] = "True"
        return settings
    return {}


def _matrix(tensors: dict[str, Any], *names: str) -> Any:
    """Return the first existing tensor if it is a non-empty matrix, else None."""
    found = next((tensors[name] for name in names if name in tensors), None)
    return found if found is not None and len(found.shape) == 2 and found.size else None


def _encoder(tensors: Collection[str]) -> str:
    """Return the name of the encoder that fits the tensor names."""
    for cls, forms in encoder_forms().items():
        mark = f"encoder.{forms.mark}"
        if forms.mark and any(name.startswith(mark) for name in tensors):
            return ENCODERS[cls].name
    return DEFAULT


def _torch_encoder(tensors: Collection[str]) -> str:
    """Return the name of the encoder that fits PufferLib 4.0's keys, or ""."""
    for cls, forms in encoder_forms().items():
        if forms.torch and f"encoder.{forms.torch.mark}" in tensors:
            return ENCODERS[cls].name
    return ""


Layers = Callable[[Collection[str]], int]


def _network(tensors: Collection[str], layers_of: Mapping[str, Layers | None]) -> tuple[str, int]:
    """Return the network and its number of layers, or ("", 0) if not exactly one network fits.

    Args:
        tensors: names of the policy's tensors.
        layers_of: for each network, (names) -> number of layers.
    """
    names = {name.removeprefix("network.") for name in tensors if name.startswith("network.")}
    pairs = layers_of.items()
    fitting = [(name, n) for name, layers in pairs if layers and (n := layers(names))]
    return fitting[0] if len(fitting) == 1 else ("", 0)


def _wrapped(tensors: Collection[str]) -> str:
    """Return the network in PufferLib 3.0's wrapper, or ""."""
    for name, forms in export_forms().items():
        if forms.puffer3 and next(iter(forms.puffer3.keys.values()))[0] in tensors:
            return name
    return ""


def early_keys() -> dict[str, str]:
    """Return {key of early 3.0 versions: later key}. Their wrapper is the layer itself."""
    wrapped = [forms.puffer3.keys.values() for forms in export_forms().values() if forms.puffer3]
    later = [key for every in wrapped for key, *_ in every]
    return {key.partition(".")[2]: key for key in later}


def _settings(dialect: str, network: str, encoder: str, H: int, L: int) -> dict[str, str]:
    return {
        "policy.dialect": dialect,
        "policy.hidden_size": str(H),
        "policy.num_layers": str(L),
        "torch.network": network,
        "torch.encoder": encoder,
    }
