"""Metadata about the policy in a safetensors or ONNX file: texts by name.

Names with a dot are configuration keys. The others describe the environment and the training.
docs/file_formats.md lists them.
"""

import json
from pathlib import Path
from typing import Any

from puffer_mlx.checkpoint import Checkpoint
from puffer_mlx.config.key import Setting
from puffer_mlx.config.schema import KEYS
from puffer_mlx.config.values import read_value
from puffer_mlx.errors import UserError
from puffer_mlx.export.file_format import DAMAGED_HINT, FileFormat, PolicyFile
from puffer_mlx.export.infer import infer_settings
from puffer_mlx.export.weight_layouts import layout_of
from puffer_mlx.policy.activations import chosen_activation
from puffer_mlx.policy.policy import Policy

SIZE_KEYS = ("policy.hidden_size", "policy.num_layers")
CLASS_KEYS = ("torch.network", "torch.encoder")  # keys that may name custom classes


def policy_metadata(checkpoint: Checkpoint, policy: Policy) -> dict[str, str]:
    """Return the metadata that a file with a checkpoint's exported policy contains.

    Args:
        checkpoint: Checkpoint with the original policy.
        policy: The policy, converted to the file's weight layout.
    """
    spec = checkpoint.spec
    config = checkpoint.config
    layout = layout_of(policy)
    activation = {"policy.activation": chosen_activation(config.policy)} if layout == "sb3" else {}
    separate = {"policy.separate_value": "True"} if policy.separate_value else {}
    return {
        "puffer_mlx": "1",
        "env": spec.name,
        "step": str(checkpoint.step),
        "observation_size": str(spec.observation_size),
        "observation_shape": json.dumps(spec.observation_shape),
        "actions": json.dumps(spec.action.sizes),
        "policy.dialect": layout,
        **activation,
        **separate,
        "policy.hidden_size": str(config.policy.hidden_size),
        "policy.num_layers": str(config.policy.num_layers),
        "policy.reset_on_terminal": str(config.policy.reset_on_terminal),
        "torch.network": config.torch.network,
        "torch.encoder": config.torch.encoder,
    }


def policy_file_from_tensors(
    path: Path, file: FileFormat, tensors: dict[str, Any], metadata: dict[str, str]
) -> PolicyFile:
    """Return the contents of a policy file with our tensor names, including its settings.

    The settings are those in our metadata, or else are inferred from names and shapes of the
    tensors. Custom classes are recorded but not imported; the user must request them.

    Args:
        path: The file.
        file: Format of the file.
        tensors: Tensors by our names.
        metadata: Metadata of the file, also of a file that another program wrote.

    Raises:
        UserError: If a configuration key has an invalid value.
    """
    keys = [f"{section}.{key}" for section in ("policy", "torch") for key in KEYS[section]]
    settings = {}
    if "puffer_mlx" in metadata:  # written by puffer_mlx
        settings = {key: metadata[key] for key in keys if key in metadata}
    classes = {key: settings.pop(key) for key in CLASS_KEYS if ":" in settings.get(key, "")}
    for key, text in settings.items():
        _check_setting(path, key, text)
    inferred = infer_settings(tensors)
    sizes = {} if classes else {key: inferred[key] for key in SIZE_KEYS if key in inferred}
    return PolicyFile(path, file, tensors, settings or inferred, metadata, classes, sizes)


def _check_setting(path: Path, key: str, text: str) -> None:
    """Raise an error that names a file if the value of a key in its metadata is invalid."""
    section, _, name = key.partition(".")
    text = text if len(text) < 80 else f"{text[:80]}…"  # invalid, since legal values are shorter
    setting = Setting(section, name, text, str(path))
    declared = KEYS[section][name]
    if problem := declared.problem(read_value(setting, declared)):
        raise UserError(f"{path} contains {setting}: {problem[0]}", DAMAGED_HINT)
