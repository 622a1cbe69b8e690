"""State dicts for the PyTorch classes of PufferLib 4.0, 3.0 or Stable-Baselines3.

``torch_modules.py`` has equivalent classes. Keys and shapes determine weight layout, encoder,
network and sizes of the policy.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.checkpoint import flat_files, normalization, rescaling
from puffer_mlx.config.memory_needs import FLOAT_BYTES, refuse_large_file
from puffer_mlx.errors import UserError
from puffer_mlx.export.file_format import (
    ExportInput,
    FileFormat,
    PolicyFile,
    Weights,
    convert_read_errors,
    mask_note,
    require_packages,
    reset_note,
)
from puffer_mlx.export.infer import early_puffer3_keys, infer_torch_settings
from puffer_mlx.export.networks import network_exports_of
from puffer_mlx.export.parity import NO_STATISTICS, NamedOutputs
from puffer_mlx.export.weight_layouts import (
    Tensors,
    from_torch,
    layout_of,
    stacked_state,
    to_torch,
    torch_unsupported_reason,
)
from puffer_mlx.policy.networks.catalog import networks_with
from puffer_mlx.policy.policy import Policy

MIN_TORCH_VERSION = (2, 6)  # earlier, weights_only=True could run code: CVE-2025-32434
OLD_TORCH_HEADER = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46"  # first bytes of torch.save files before 1.6


@dataclass(frozen=True)
class TorchFormat(FileFormat):
    """Format of PyTorch files, which contain a policy's state_dict."""

    name = "torch"
    suffixes = (".pt", ".pth", ".bin")  # PufferLib's torch backend names its files .bin
    layouts = ("torch", "puffer3", "sb3")
    tolerance = 1e-5
    purpose = "PufferLib's torch backend, 3.0, or Stable-Baselines3"
    supported = (
        "all policies without custom classes and `CombinedEncoder`; weight layout puffer3: one"
        f" {' or '.join(networks_with('puffer3'))} layer; sb3: no recurrent state, no images"
    )
    content = "a file of torch.save"
    first_bytes = (flat_files.ZIP, OLD_TORCH_HEADER)
    packages = ("torch",)
    extra = "torch"
    external = True

    def unsupported_reason(self, policy: Policy) -> str | None:
        """Return the reason why no PyTorch class can hold a policy, or None."""
        return torch_unsupported_reason(policy)

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write a policy's state_dict to a PyTorch file, with the statistics as buffers."""
        save_torch(contents.policy, contents.weights, path, contents.statistics)

    def notes(self, contents: ExportInput) -> list[str]:
        """Return notes for users of a PyTorch policy file, such as on resets and masks."""
        notes = reset_note(contents) + mask_note(contents)
        network: Any = contents.policy.network
        network_class = network_exports_of(network).torch
        if layout_of(contents.policy) == "sb3":
            notes.append(sb3_note(contents.policy))
        elif network_class and (note := network_class.note(network.layers)):
            notes.append(note)
        return notes + super().notes(contents)

    def read(self, path: Path) -> PolicyFile:
        """Read the tensors of a PyTorch file. A file that would run code is rejected."""
        tensors = read_torch(path)
        return PolicyFile(path, self, tensors, infer_torch_settings(path, tensors))

    def weights(self, source: PolicyFile, policy: Policy) -> Weights:
        """Return a PyTorch file's weights by our tensor names, with image channels last."""
        try:
            return from_torch(policy, source.tensors)
        except UserError as error:
            raise UserError(f"{source.path}: {error.message}", error.hint) from None

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> NamedOutputs:
        """Run the policy of a PyTorch file with PyTorch. Returns the outputs."""
        tensors = source.tensors | normalization.statistics_tensors(source.statistics)
        tensors |= rescaling.bounds_tensors(source.bounds)
        return run_torch(policy, tensors, observations)


def sb3_note(policy: Policy) -> str:
    """Return a note with Stable-Baselines3's arguments that create a matching policy."""
    from puffer_mlx.export.torch_modules import ACTIVATION_MODULES

    encoder: Any = policy.encoder
    network: Any = policy.network
    widths = [encoder.hidden] * (1 + network.layers)
    activation = ACTIVATION_MODULES[encoder.activation].__name__
    arguments = f"net_arch={widths}, activation_fn=torch.nn.{activation}"
    return f"Stable-Baselines3 loads it with PPO(..., policy_kwargs=dict({arguments}))"


def save_torch(
    policy: Policy,
    weights: Weights,
    path: Path,
    statistics: normalization.Statistics = NO_STATISTICS,
) -> None:
    """Write a policy's state_dict to a PyTorch file. The weight layout can't be ``native``.

    The loaders of PufferLib reject the keys of statistics and bounds, since they wouldn't apply
    them. Modules of ``torch_modules.make_module`` apply them.
    """
    import torch

    from puffer_mlx.export.torch_modules import make_module

    module = make_module(policy)
    statistics_tensors = normalization.statistics_tensors(
        {name: statistics[name] for name in normalization.OBSERVATIONS if name in statistics}
    )
    bounds = rescaling.bounds_tensors(policy.decoder.action.bounds)
    arrays = {**to_torch(policy, weights), **statistics_tensors, **bounds}
    tensors = {name: torch.as_tensor(w) for name, w in arrays.items()}
    module.load_state_dict(tensors)
    buffer = io.BytesIO()  # torch doesn't raise OSError when writing fails
    torch.save(module.state_dict(), buffer)
    path.write_bytes(buffer.getvalue())


def run_torch(
    policy: Policy, tensors: dict[str, Any], observations: np.ndarray, device: str = "cpu"
) -> NamedOutputs:
    """Run a policy in PyTorch. The policy can't have the weight layout ``native``.

    Args:
        policy: Policy that determines the PyTorch module (``torch_modules.make_module``).
        tensors: State_dict with the weights, and with the normalization statistics to apply. Of a
            tensor with several keys, one key is enough. ``from_torch`` checks for missing tensors.
        observations: Raw observations (T, S, D).
        device: PyTorch device.

    Returns:
        Outputs by name.
    """
    import torch

    from puffer_mlx.export.torch_modules import make_module

    module = make_module(policy).to(device)
    tensors = {name: torch.as_tensor(w) for name, w in tensors.items()}
    module.load_state_dict(tensors, strict=False)
    with torch.no_grad():
        sequences = torch.from_numpy(observations).to(device).transpose(0, 1)  # (S, T, D)
        outputs, values, state = module(sequences)
    names = ("mean", "logstd") if policy.decoder.action.continuous else ("logits",)
    outputs_by_head = outputs if policy.decoder.action.continuous else (outputs,)
    arrays = {
        name: output.transpose(0, 1) for name, output in zip(names, outputs_by_head, strict=True)
    }
    arrays["value"] = values.T
    arrays |= dict(zip(stacked_state(policy, policy.initial_state(1)), state, strict=True))
    return {name: output.detach().cpu().numpy() for name, output in arrays.items()}


def read_torch(path: Path) -> Tensors:
    """Read the state_dict of a PyTorch file as float32 arrays, with keys as PufferLib's loader.

    Raises:
        UserError: If the file isn't a state_dict, or PyTorch is missing.
    """
    require_packages("torch", "torch")
    import torch

    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < MIN_TORCH_VERSION:
        raise UserError(
            f"PyTorch {torch.__version__} may run code from a file that it loads",
            "pip install 'torch>=2.6'",
        )
    hint = "save module.state_dict(), not the module; or the file is damaged"
    with convert_read_errors("PyTorch", path, hint):
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict) or not all(
        isinstance(key, str) and isinstance(w, torch.Tensor) for key, w in loaded.items()
    ):
        raise UserError(
            f"{path} is not a state_dict of tensors",
            "use the model's file (model_*.pt), not a trainer's state",
        )
    # A tensor may be an expanded view, larger than the file.
    refuse_large_file(path, sum(FLOAT_BYTES * w.numel() for w in loaded.values()))
    tensors = {}
    renamed_keys = early_puffer3_keys()
    for key, w in loaded.items():
        key = key.replace("module.", "").replace("_orig_mod.", "")  # added by DDP and torch.compile
        key = renamed_keys.get(key, key)
        with convert_read_errors("PyTorch", path, hint):
            tensors[key] = w.detach().float().numpy()  # raises for sparse or quantized tensors
        if not np.isfinite(tensors[key]).all():
            raise UserError(
                f"{path}: {key} contains values that aren't finite", "the file is damaged"
            )
    return tensors


FORMAT = TorchFormat()
