"""PufferLib's flat file, which its CUDA backend reads and writes (``checkpoint/flat_files.py``).

It tells nothing of its policy: one of the native dialect, whose sizes make as many numbers as it
has, or of 3.0's, whose files are read too. The networks that may be in it have the forms ``flat``
and ``puffer3`` (``policy/networks/__init__.py``).
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import flat_files, normalization
from puffer_mlx.checkpoint.environment_statistics import MEMORY, write_statistics
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.export.file_format import (
    Contents,
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
SIZES = range(1, 4097), range(1, 17)  # hidden sizes and layers that a file's size may mean


class Loss(NamedTuple):
    """Something that the file lacks: a refusal and its hint, or a note where it was agreed to."""

    fault: str
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
    " import.py and evaluate.py --vec.rescale-actions 1 does",
)
SHORT = (
    "PufferLib's CUDA goes on with numbers of its own where the file has none, 5.0's player of CPUs"
    " with zeros"
)


@dataclass(frozen=True)
class Bin(FileFormat):
    """The flat file.

    Args:
        alignment: of tensors, by the build of PufferLib that reads or wrote it:
            ``flat_files.BF16`` or ``FLOAT``.
        whole: write all of what PufferLib keeps the tensors in: see ``flat_files.save_bin``.
        lossy: write it even if it lacks numbers, or what observations are normalised by or
            actions rescaled to.
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

    def fault(self, policy: Policy) -> str | None:
        """Whatever isn't of upstream's native policy."""
        return flat_files.part_fault(policy)

    def losses(self, contents: Contents) -> list[str]:
        """Statistics, bounds, and the last numbers where there is room between tensors."""
        lacking = [RAW] if normalization.normalises(contents.memory) else []
        lacking += [UNITS] if contents.bounds else []
        short = None if self.whole else flat_files.bin_fault(contents.policy, self.alignment)
        if short:
            lacking.append(Loss(short, flat_files.SHORT_HINT, SHORT))
        if lacking and not self.lossy:
            raise UserError(lacking[0].fault, lacking[0].hint)
        return [loss.note for loss in lacking]

    def write(self, contents: Contents, path: Path) -> None:
        """One tensor after the other."""
        flat_files.save_bin(
            contents.policy,
            contents.weights,
            path,
            self.alignment,
            whole=self.whole,
            lossy=self.lossy,
        )

    def notes(self, contents: Contents) -> list[str]:
        """PufferLib masks actions itself; 5.0 zeroes states, 4.0 never does."""
        return [f"{note}; PufferLib 5.0 does, 4.0 never" for note in reset_note(contents)]

    def write_beside(self, contents: Contents, path: Path) -> list[str]:
        """The statistics, where ``import.py`` and ``--load-model-path`` find them."""
        if not normalization.normalises(contents.memory):
            return []
        beside = path.with_name(f"{path.name}.{MEMORY}")
        with publish(beside, named=True) as temporary:
            write_statistics(contents.memory, temporary)
        return [f"puffer_mlx reads their statistics from {relative(beside)}"]

    def read(self, path: Path) -> PolicyFile:
        """Only what is the same of every such file; its numbers are read by ``weights``."""
        flat = names_of("flat")
        network = {"torch.network": flat[0]} if len(flat) == 1 else {}  # or the configuration tells
        return PolicyFile(path, self, settings={**network, "torch.encoder": "DefaultEncoder"})

    def sizes_for(self, source: PolicyFile, spec: EnvSpec, config: Config) -> Settings:
        """Hidden size and layers, where the configuration's don't make as many numbers."""
        return sizes_of(source.path, spec, config)

    def dialect(self, source: PolicyFile, asked: str) -> str:
        """3.0's files are read where that dialect is asked for."""
        return asked if asked == "puffer3" else "native"

    def weights(self, source: PolicyFile, policy: Policy) -> Weights:
        """Numbers taken apart by the policy's shapes."""
        return flat_files.read_bin(source.path, policy.init(mx.random.key(0)), self.alignment)

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> Outputs:
        """By our own reader."""
        with warnings.catch_warnings(action="ignore"):  # numbers are missing, as was asked for
            return super().run(source, policy, observations)


def sizes_of(path: Path, spec: EnvSpec, config: Config) -> Settings:
    """The sizes of a file's policy as settings, where the configuration's don't fit.

    Raises:
        UserError: no sizes make a policy of so many numbers, or several do.
    """
    size = path.stat().st_size
    A, D = spec.action.logits, spec.observation_size
    old = config.policy.dialect == "puffer3"

    def products(H: int) -> list[int]:
        """Numbers of the tensors before the network's."""
        return [H * D, (A + 1) * H, *([spec.action.heads] if spec.action.continuous else [])]

    def lengths(H: int, L: int) -> set[int]:
        """Numbers in the forms of a file."""
        if old:  # 3.0's: products with biases, and one layer
            before = H * D + H + A * H + A + H + 1
            wrapped = [forms.puffer3 for forms in FORMS.values() if forms.puffer3]
            return {before + sum(sizes(H).values()) for sizes in wrapped} if L == 1 else set()
        return {
            flat_files.flat_form([*products(H), *network], alignment, whole).length
            for network in _networks(H, L)
            for alignment in (flat_files.BF16, flat_files.FLOAT)
            for whole in (False, True)
        }

    configured = config.policy.hidden_size, config.policy.num_layers
    loose = not old and any(
        flat_files.cut_or_padded([*products(configured[0]), *network], size // 4).length
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
    """Hidden sizes and layers with at most so many numbers."""
    for H in SIZES[0]:
        for L in SIZES[1]:
            if numbers < min(map(sum, _networks(H, L))):
                break
            yield H, L


def _networks(H: int, L: int) -> list[list[int]]:
    """Numbers of each tensor, for every network that a flat file may hold."""
    return [list(forms.flat(H, L).values()) for forms in FORMS.values() if forms.flat]


FORMAT = Bin()
