"""PufferLib's flat file for its CUDA backend (``checkpoint/flat_files.py``).

The file doesn't describe its policy. It has weight layout native, with sizes that match the number
of values, or puffer3 (read only). Networks support it by the facts ``flat`` and ``puffer3``
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
    SettingTexts,
    Weights,
    reset_note,
)
from puffer_mlx.export.parity import NamedOutputs
from puffer_mlx.policy.networks.catalog import NETWORK_FACTS, networks_with
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import publish, relative

ALIGNMENTS = {"bf16": flat_files.BF16, "float": flat_files.FLOAT}
# Sizes that are tried for a file of unknown sizes.
HIDDEN_SIZES = range(1, 4097)
LAYER_COUNTS = range(1, 17)


class FormatLoss(NamedTuple):
    """Kind of data that a flat policy file loses: error message, hint, and note if accepted."""

    reason: str
    hint: str
    note: str


MISSING_STATISTICS = FormatLoss(
    "the flat file can't hold this policy's normalization statistics: PufferLib would give it raw"
    " observations",
    "use --to torch, onnx or safetensors; --lossy writes only the weights",
    "the policy needs normalized observations, and the flat file doesn't record that",
)
MISSING_BOUNDS = FormatLoss(
    "the flat file can't hold the bounds of this policy's rescaled actions: PufferLib would use"
    " actions from -1 to 1",
    "use --to torch, onnx or safetensors; --lossy writes only the weights",
    "the policy's actions must be rescaled to their bounds, and the flat file doesn't record that:"
    " use --vec.rescale-actions 1 with puffer-mlx import and evaluate",
)
MISSING_VALUES_NOTE = (
    "for missing values, PufferLib's CUDA backend uses its initial ones, and 5.0's CPU player zeros"
)


@dataclass(frozen=True)
class FlatFormat(FileFormat):
    """PufferLib's flat file: the values of all tensors in one array.

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
    layouts = ("native",)
    tolerance = 0.0
    rescales = False
    purpose = "PufferLib's CUDA backend"
    supported = (
        f"PufferLib's flat file: linear encoder, {' or '.join(networks_with('flat'))}, no biases"
        " (`policy.dialect native`)"
    )
    options = (
        Option(
            "--bin-build",
            "alignment",
            "PufferLib's build that will read the file: bf16 (the default) or float; for continuous"
            " actions, they align tensors differently",
            "PufferLib's build that wrote a flat file of continuous actions (default bf16)",
            ALIGNMENTS,
        ),
        Option(
            "--bin-whole",
            "whole",
            "write all values of a policy with continuous actions; 4.0 can't load such a file",
        ),
        Option(
            "--lossy",
            "lossy",
            "write a file even if it lacks values of the policy, its normalization statistics or"
            " its action bounds",
        ),
    )

    def unsupported_reason(self, policy: Policy) -> str | None:
        """Return the reason why PufferLib's native policy can't express our policy, or None."""
        return flat_files.unsupported_component_reason(policy)

    def lossy_notes(self, contents: ExportInput) -> list[str]:
        """Return notes on what a flat file lacks of the policy: statistics, bounds, last values."""
        losses = [MISSING_STATISTICS] if normalization.normalises(contents.statistics) else []
        losses += [MISSING_BOUNDS] if contents.bounds else []
        reason = flat_files.flat_unsupported_reason(contents.policy, self.alignment)
        if reason and not self.whole:
            losses.append(FormatLoss(reason, flat_files.SHORT_HINT, MISSING_VALUES_NOTE))
        if losses and not self.lossy:
            raise UserError(losses[0].reason, losses[0].hint)
        return [loss.note for loss in losses]

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write all tensors of a policy to a flat file."""
        flat_files.save_bin(
            contents.policy,
            contents.weights,
            path,
            self.alignment,
            whole=self.whole,
            lossy=self.lossy,
        )

    def notes(self, contents: ExportInput) -> list[str]:
        """Return notes on resetting the recurrent state, for users of the file in PufferLib.

        PufferLib masks actions itself. 5.0 also resets states; 4.0 never does.
        """
        return [f"{note}; PufferLib 5.0 does this, 4.0 doesn't" for note in reset_note(contents)]

    def write_beside(self, contents: ExportInput, path: Path) -> list[str]:
        """Write normalization statistics to a file next to the exported flat file.

        ``import`` and ``--load-model-path`` find them there.
        """
        if not normalization.normalises(contents.statistics):
            return []
        beside = path.with_name(f"{path.name}.{STATISTICS_FILE}")
        with publish(beside, user_named=True) as temporary:
            write_statistics(contents.statistics, temporary)
        return [f"puffer_mlx reads the normalization statistics from {relative(beside)}"]

    def read(self, path: Path) -> PolicyFile:
        """Describe a flat policy file by the settings that all such files share.

        The tensors' values are read later, by ``weights``.
        """
        flat = networks_with("flat")
        # With several networks, the configuration decides.
        network = {"torch.network": flat[0]} if len(flat) == 1 else {}
        return PolicyFile(path, self, settings={**network, "torch.encoder": "DefaultEncoder"})

    def sizes_for(self, source: PolicyFile, spec: EnvSpec, config: Config) -> SettingTexts:
        """Infer hidden size and layers from a flat file, if the configured ones don't fit it."""
        return infer_sizes(source.path, spec, config)

    def weight_layout(self, source: PolicyFile, requested: str) -> str:
        """Return the weight layout of a flat file: ``puffer3`` if requested, else ``native``."""
        return requested if requested == "puffer3" else "native"

    def weights(self, source: PolicyFile, policy: Policy) -> Weights:
        """Read the weights of a policy from a flat file, with the policy's shapes."""
        return flat_files.read_bin(source.path, policy.init(mx.random.key(0)), self.alignment)

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> NamedOutputs:
        """Run the policy of a flat file in puffer_mlx. Returns the outputs."""
        with warnings.catch_warnings(action="ignore"):  # the caller accepted missing values
            return super().run(source, policy, observations)


def infer_sizes(path: Path, spec: EnvSpec, config: Config) -> SettingTexts:
    """Infer a policy's hidden size and layers from the size of its flat file.

    Returns:
        The sizes as settings; {} if the configured ones fit the file.

    Raises:
        UserError: If no sizes or several sizes fit the file.
    """
    size = path.stat().st_size
    A = spec.action.logits
    D = spec.observation_size
    is_puffer3 = config.policy.dialect == "puffer3"

    def products(H: int) -> list[int]:
        """Return the number of values in each tensor before the network in a policy's flat file.

        H is the policy's hidden size.
        """
        return [H * D, (A + 1) * H, *([spec.action.heads] if spec.action.continuous else [])]

    def lengths(H: int, L: int) -> set[int]:
        """Return all sizes that a policy's flat file can have for hidden size H and L layers.

        Sizes are numbers of values.
        """
        if is_puffer3:  # 3.0: linear layers with biases, one network layer
            without_network = H * D + H + A * H + A + H + 1
            wrapped = [
                facts.puffer3 for facts in NETWORK_FACTS.values() if facts.puffer3 and L == 1
            ]
            return {without_network + sum(sizes(H).values()) for sizes in wrapped}
        return {
            flat_files.flat_layout([*products(H), *network], alignment, whole).length
            for network in _network_sizes(H, L)
            for alignment in (flat_files.BF16, flat_files.FLOAT)
            for whole in (False, True)
        }

    configured = config.policy.hidden_size, config.policy.num_layers
    incomplete = not is_puffer3 and any(
        flat_files.tolerant_layout([*products(configured[0]), *network], size // 4).length
        == size // 4
        for network in _network_sizes(*configured)
    )
    if size % 4 == 0 and (incomplete or size // 4 in lengths(*configured)):
        return {}
    fitting = [(H, L) for H, L in _possible_sizes(size // 4) if size // 4 in lengths(H, L)]
    likely = [(H, L) for H, L in fitting if H & (H - 1) == 0] or fitting
    if size % 4 or len(likely) != 1:
        choices = " or ".join(f"{H} x {L}" for H, L in likely)
        problem = f"hidden size x layers may be {choices}" if likely else "no sizes fit"
        raise UserError(
            f"{path} has {size} bytes; for {spec.name} (observations {D}, actions"
            f" {list(spec.action.sizes)}), {problem}",
            "choose with --policy.hidden-size and --policy.num-layers"
            if likely
            else "the file is incomplete, or has another environment or kind of policy",
        )
    H, L = likely[0]
    return {"policy.hidden_size": str(H), "policy.num_layers": str(L)}


def _possible_sizes(max_values: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of hidden size and layers whose networks have at most ``max_values`` values."""
    for H in HIDDEN_SIZES:
        for L in LAYER_COUNTS:
            if max_values < min(map(sum, _network_sizes(H, L))):
                break
            yield H, L


def _network_sizes(H: int, L: int) -> list[list[int]]:
    """Return the sizes of all tensors of each network that a flat policy file may hold."""
    return [list(facts.flat(H, L).values()) for facts in NETWORK_FACTS.values() if facts.flat]


FORMAT = FlatFormat()
