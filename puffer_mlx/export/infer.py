"""Infer a policy's settings from the names and shapes of its tensors."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.export.encoders import encoder_exports
from puffer_mlx.export.networks import network_exports
from puffer_mlx.export.weight_layouts import Tensors
from puffer_mlx.policy.encoders.catalog import ENCODER_FACTS as ENCODERS
from puffer_mlx.policy.encoders.default import NAME as DEFAULT
from puffer_mlx.policy.networks.catalog import NETWORK_FACTS, networks_with


def infer_settings(tensors: dict[str, Any]) -> dict[str, str]:
    """Infer a policy's settings from tensors with our names; {} if no built-in class fits."""
    decoder = _matrix(tensors, "decoder.weight", "decoder.actions.weight")
    network, layers = _network(
        tensors, {name: facts.layers for name, facts in NETWORK_FACTS.items()}
    )
    if decoder is None or not network:
        return {}  # perhaps a policy with custom classes: the user's configuration describes it
    encoder = _encoder(tensors)
    settings = _policy_settings("native", network, encoder, decoder.shape[1], layers)
    if any(name.startswith("critic.") for name in tensors):
        settings["policy.separate_value"] = "True"
    if "decoder.weight" not in tensors and encoder == DEFAULT:
        del settings["policy.dialect"]  # torch or puffer3: their tensors have the same names
    elif "decoder.weight" not in tensors:
        settings["policy.dialect"] = "torch"
    return settings


def infer_torch_settings(path: Path, tensors: Tensors) -> dict[str, str]:
    """Infer a policy's settings from the tensors of a state_dict.

    Raises:
        UserError: If no built-in policy fits.
    """
    if _matrix(tensors, "action_net.weight") is not None and (settings := _sb3_settings(tensors)):
        return settings
    value = _matrix(tensors, "policy.value.weight")
    if value is not None and (network := _puffer3_network(tensors)):
        return _policy_settings("puffer3", network, DEFAULT, value.shape[1], 1)
    classes = {name: exports.torch for name, exports in network_exports().items() if exports.torch}
    network, layers = _network(
        tensors, {name: torch_class.layers for name, torch_class in classes.items()}
    )
    encoder = _torch_encoder(tensors)
    value = _matrix(tensors, "decoder.value_function.weight")
    if not network or not encoder or value is None:
        names = ", ".join(list(tensors)[:8]) + (", ..." if len(tensors) > 8 else "")
        raise UserError(
            f"{path} fits no policy class of PufferLib 4.0, 3.0 (with"
            f" {' or '.join(networks_with('puffer3'))}) or Stable-Baselines3: {names}",
            "policies with an environment's custom encoder can't be imported",
        )
    return _policy_settings("torch", network, encoder, value.shape[1], layers)


def _sb3_settings(tensors: Tensors) -> dict[str, str]:
    """Infer the settings of a Stable-Baselines3 policy; {} for other tensors.

    The activation can't be inferred.
    """
    for name, exports in network_exports().items():
        if exports.sb3 is None:
            continue
        prefix = f"{exports.sb3.module}.policy_net."
        actor = {key: w for key, w in tensors.items() if key.startswith(prefix)}
        if not actor:
            continue
        critic = [tensors.get(key.replace("policy_net", "value_net")) for key in actor]
        layers = sum(key.endswith(".weight") for key in actor) - 1
        H = tensors["action_net.weight"].shape[1]
        settings = _policy_settings("sb3", name, DEFAULT, H, layers)
        pairs = zip(actor.values(), critic, strict=True)
        if not all(v is not None and np.array_equal(w, v) for w, v in pairs):
            settings["policy.separate_value"] = "True"
        return settings
    return {}


def _matrix(tensors: dict[str, Any], *names: str) -> Any:
    """Find a matrix among tensors by the first of several names that exists.

    Returns None if no name exists, or if that tensor isn't a matrix or is empty.
    """
    tensor = next((tensors[name] for name in names if name in tensors), None)
    return tensor if tensor is not None and len(tensor.shape) == 2 and tensor.size else None


def _encoder(tensors: Collection[str]) -> str:
    """Infer a policy's encoder from the names of its tensors. Returns the encoder's name."""
    for cls, exports in encoder_exports().items():
        name_prefix = f"encoder.{exports.name_prefix}"
        if exports.name_prefix and any(name.startswith(name_prefix) for name in tensors):
            return ENCODERS[cls].name
    return DEFAULT


def _torch_encoder(tensors: Collection[str]) -> str:
    """Infer a policy's encoder from the keys of PufferLib 4.0's state_dict.

    Returns:
        The encoder's name; "" if none fits.
    """
    for cls, exports in encoder_exports().items():
        if exports.torch and f"encoder.{exports.torch.unique_key}" in tensors:
            return ENCODERS[cls].name
    return ""


LayerCounter = Callable[[Collection[str]], int]


def _network(
    tensors: Collection[str], layers_of: Mapping[str, LayerCounter | None]
) -> tuple[str, int]:
    """Infer a policy's network and its number of layers from the names of its tensors.

    Args:
        tensors: Names of the policy's tensors.
        layers_of: For each network, a function from tensor names to its number of layers.

    Returns:
        The network's name and the number of layers; ("", 0) if no network fits, or several do.
    """
    names = {name.removeprefix("network.") for name in tensors if name.startswith("network.")}
    layers = {name: count(names) for name, count in layers_of.items() if count}
    fitting = [(name, n) for name, n in layers.items() if n]
    return fitting[0] if len(fitting) == 1 else ("", 0)


def _puffer3_network(tensors: Collection[str]) -> str:
    """Infer the recurrent network of a PufferLib 3.0 policy from the keys of its state_dict.

    Returns:
        The network's name; "" if none fits.
    """
    for name, exports in network_exports().items():
        if exports.puffer3 is None:
            continue
        first_tensor_keys = next(iter(exports.puffer3.keys.values()))
        if first_tensor_keys[0] in tensors:
            return name
    return ""


def early_puffer3_keys() -> dict[str, str]:
    """Return a table of the keys of recurrent layers in early and later versions of PufferLib 3.0.

    The later key is the value. In early versions, the wrapper of a recurrent policy is itself the
    recurrent layer, so its keys have no prefix: ``weight_ih_l0`` instead of ``lstm.weight_ih_l0``.
    """
    wrappers = [exports.puffer3 for exports in network_exports().values() if exports.puffer3]
    later_keys = [keys[0] for wrapper in wrappers for keys in wrapper.keys.values()]
    return {key.partition(".")[2]: key for key in later_keys}


def _policy_settings(layout: str, network: str, encoder: str, H: int, L: int) -> dict[str, str]:
    """Return a policy's settings, such as its hidden size, as texts by configuration key."""
    return {
        "policy.dialect": layout,
        "policy.hidden_size": str(H),
        "policy.num_layers": str(L),
        "torch.network": network,
        "torch.encoder": encoder,
    }
