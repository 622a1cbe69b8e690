"""PufferLib's flat file for its CUDA backend (``checkpoint/flat_files.py``).

The file doesn't describe its policy. It has the native dialect, with sizes that match the number of
values, or 3.0's dialect (read only). Supported networks have the forms ``flat`` and ``puffer3``
(``policy/networks/__init__.py``).
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import flat_files, normalization
from puffer_mlx.checkpoint.environment_statistics import STATISTICS_FILE, write_statistics
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.export.file_format import (
    ExportInput,
    FileFormat,
    Option,
    PolicyFile,
    Settings,
    Weights,
    reset_note,
)
from puffer_mlx.export.parity import Outputs
from puffer_mlx.policy.networks.catalog import FORMS, names_of
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish, relative

BUILDS = {"bf16": flat_files.BF16, "float": flat_files.FLOAT}
SIZES = range(1, 4097), range(1, 17)  # hidden sizes and layers to try for a file's size


class Loss(NamedTuple):
    """A loss of the format: an error message and its hint, and the note if the loss is accepted."""

    reason: str
    hint: str
    note: str


RAW = Loss(
    "the flat file can't hold what this policy's observations are normalised by: PufferLib would"
    " show it raw ones",
    "--to torch, onnx or safetensors hold it; --lossy writes the weights alone",
    "the policy wants normalised observations, and the flat file can't say so",
)
UNITS = Loss(
    "the flat file can't hold what this policy's actions are rescaled to: PufferLib would take its"
    " -1 to 1 as they are",
    "--to torch, onnx or safetensors hold it; --lossy writes the weights alone",
    "the policy's actions are to be rescaled to their bounds, and the flat file can't say so; to"
    " puffer-mlx import and evaluate --vec.rescale-actions 1 does",
)
SHORT = (
    "PufferLib's CUDA goes on with numbers of its own where the file has none, 5.0's player of CPUs"
    " with zeros"
)


@dataclass(frozen=True)
class FlatFormat(FileFormat):
    """The flat file.

    Args:
        alignment: Alignment of the PufferLib build that reads or wrote the file,
            ``flat_files.BF16`` or ``FLOAT``.
        whole: True to write the entire array, as in ``flat_files.save_bin``.
        lossy: True to accept missing values, missing normalization statistics and missing bounds
            of rescaled actions.
    """

    alignment: int = flat_files.BF16
    whole: bool = False
    lossy: bool = False

    name = "bin"
    suffixes = (".bin",)
    dialects = ("native",)
    tolerance = 0.0
    rescales = False
    use = "PufferLib's CUDA backend"
    holds = (
        f"PufferLib's flat file: linear encoder, {' or '.join(names_of('flat'))}, no biases"
        " (`policy.dialect native`)"
    )
    options = (
        Option(
            "--bin-build",
            "alignment",
            "PufferLib's build that will read it: bf16 (the default) or float; with continuous"
            " actions they differ in how they align tensors",
            "PufferLib's build that wrote a flat file of continuous actions (default bf16)",
            BUILDS,
        ),
        Option("--bin-whole", "whole", "all of a policy of continuous actions: 4.0 refuses that"),
        Option(
            "--lossy",
            "lossy",
            "write a file even if it lacks numbers of the policy, or what its observations are"
            " normalised by, or its actions rescaled to",
        ),
    )

    def unsupported_reason(self, policy: Policy) -> str | None:
        """Return the reason if a part isn't in PufferLib's native policy, or None."""
        return flat_files.unsupported_component(policy)

    def lossy_notes(self, contents: ExportInput) -> list[str]:
        """Return notes on missing statistics, bounds, and last values."""
        lacking = [RAW] if normalization.normalises(contents.statistics) else []
        lacking += [UNITS] if contents.bounds else []
        reason = flat_files.flat_unsupported_reason(contents.policy, self.alignment)
        if reason and not self.whole:
            lacking.append(Loss(reason, flat_files.SHORT_HINT, SHORT))
        if lacking and not self.lossy:
            raise UserError(lacking[0].reason, lacking[0].hint)
        return [loss.note for loss in lacking]

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write all tensors to one array."""
        flat_files.save_bin(
            contents.policy,
            contents.weights,
            path,
            self.alignment,
            whole=self.whole,
            lossy=self.lossy,
        )

    def notes(self, contents: ExportInput) -> list[str]:
        """Return notes on resets. PufferLib masks actions; 5.0 resets states, 4.0 never does."""
        return [f"{note}; PufferLib 5.0 does, 4.0 never" for note in reset_note(contents)]

    def write_beside(self, contents: ExportInput, path: Path) -> list[str]:
        """Write the statistics to a file where ``import`` and ``--load-model-path`` look."""
        if not normalization.normalises(contents.statistics):
            return []
        beside = path.with_name(f"{path.name}.{STATISTICS_FILE}")
        with publish(beside, user_named=True) as temporary:
            write_statistics(contents.statistics, temporary)
        return [f"puffer_mlx reads their statistics from {relative(beside)}"]

    def read(self, path: Path) -> PolicyFile:
        """Return the settings that all flat files share. ``weights`` reads the values."""
        flat = names_of("flat")
        # With several networks, the configuration decides.
        network = {"torch.network": flat[0]} if len(flat) == 1 else {}
        return PolicyFile(path, self, settings={**network, "torch.encoder": "DefaultEncoder"})

    def sizes_for(self, source: PolicyFile, spec: EnvSpec, config: Config) -> Settings:
        """Return hidden size and layers if the configured ones don't fit the file."""
        return sizes_of(source.path, spec, config)

    def dialect(self, source: PolicyFile, asked: str) -> str:
        """Return ``puffer3`` if requested, else ``native``."""
        return asked if asked == "puffer3" else "native"

    def weights(self, source: PolicyFile, policy: Policy) -> Weights:
        """Return the file's values in the policy's shapes."""
        return flat_files.read_bin(source.path, policy.init(mx.random.key(0)), self.alignment)

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> Outputs:
        """Return the outputs of our reader."""
        with warnings.catch_warnings(action="ignore"):  # the caller accepted missing values
            return super().run(source, policy, observations)


def sizes_of(path: Path, spec: EnvSpec, config: Config) -> Settings:
    """Return a policy's sizes as settings, or {} if the configured ones fit the file.

    Raises:
        UserError: If no sizes or several sizes fit the file.
    """
    size = path.stat().st_size
    A, D = spec.action.logits, spec.observation_size
    old = config.policy.dialect == "puffer3"

    def products(H: int) -> list[int]:
        """Return the number of values in each tensor before the network."""
        return [H * D, (A + 1) * H, *([spec.action.heads] if spec.action.continuous else [])]

    def lengths(H: int, L: int) -> set[int]:
        """Return the possible numbers of values in a file."""
        if old:  # 3.0: linear layers with biases, one network layer
            before = H * D + H + A * H + A + H + 1
            wrapped = [forms.puffer3 for forms in FORMS.values() if forms.puffer3]
            return {before + sum(sizes(H).values()) for sizes in wrapped} if L == 1 else set()
        return {
            flat_files.flat_layout([*products(H), *network], alignment, whole).length
            for network in _networks(H, L)
            for alignment in (flat_files.BF16, flat_files.FLOAT)
            for whole in (False, True)
        }

    configured = config.policy.hidden_size, config.policy.num_layers
    loose = not old and any(
        flat_files.unaligned_layout([*products(configured[0]), *network], size // 4).length
        == size // 4
        for network in _networks(*configured)
    )
    if size % 4 == 0 and (loose or size // 4 in lengths(*configured)):
        return {}
    fitting = [(H, L) for H, L in _sizes(size // 4) if size // 4 in lengths(H, L)]
    usual = [(H, L) for H, L in fitting if H & (H - 1) == 0] or fitting
    if size % 4 or len(usual) != 1:
        shown = ", ".join(f"{H} x {L}" for H, L in usual) or "no hidden size and layers"
        raise UserError(
            f"{path} has {size} bytes, which {shown} make for {spec.name}"
            f" (observations {D}, actions {list(spec.action.sizes)})",
            "--policy.hidden-size and --policy.num-layers say which"
            if usual
            else "the file is cut off, or of another environment or kind of policy",
        )
    H, L = usual[0]
    return {"policy.hidden_size": str(H), "policy.num_layers": str(L)}


def _sizes(numbers: int) -> Iterator[tuple[int, int]]:
    """Yield hidden sizes and layers of networks with at most ``numbers`` values."""
    for H in SIZES[0]:
        for L in SIZES[1]:
            if numbers < min(map(sum, _networks(H, L))):
                break
            yield H, L


def _networks(H: int, L: int) -> list[list[int]]:
    """Return the number of values in each tensor, for every network that a flat file may hold."""
    return [list(forms.flat(H, L).values()) for forms in FORMS.values() if forms.flat]


FORMAT = FlatFormat()
