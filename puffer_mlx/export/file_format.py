"""Interface of the file formats for policies. ``formats/`` has one object per format."""

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import Checkpoint, normalization, rescaling, weight_files
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.export.parity import NamedOutputs, policy_outputs
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

Weights = Any
SettingTexts = dict[str, str]  # configuration texts by key: policy.hidden_size, torch.network, ...
DAMAGED_HINT = "the file is damaged"
STEP_SUFFIX = re.compile(r"(?:^|_)(\d{16})$")  # end of a checkpoint's name, PufferLib's or ours


@contextlib.contextmanager
def convert_read_errors(library: str, path: Path, hint: str = DAMAGED_HINT) -> Iterator[None]:
    """Convert a library's exception about a file's contents to a UserError.

    Libraries raise many exception types for damaged files, so all are caught. The block must only
    call the library.

    Args:
        library: Name of the library, for the message.
        path: File that the library reads.
        hint: Hint for the message.

    Raises:
        UserError: If the library raised an exception.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} can't be read by {library}: {reason}", hint) from None


class ExportInput(NamedTuple):
    """Policy to export: the checkpoint's, and the one converted to the file's weight layout.

    Args:
        checkpoint: Checkpoint with the original policy.
        policy: Policy converted to the file's weight layout.
        weights: Weights converted to the file's weight layout.
    """

    checkpoint: Checkpoint
    policy: Policy
    weights: Weights

    @property
    def statistics(self) -> normalization.Statistics:
        """Normalization statistics of the policy's observations; empty without normalization."""
        return self.checkpoint.statistics

    @property
    def bounds(self) -> rescaling.Bounds:
        """Bounds of the policy's rescaled actions; empty without rescaling."""
        return self.checkpoint.spec.action.bounds


@dataclass
class PolicyFile:
    """Contents of a policy file after reading.

    Args:
        path: The file.
        file: Format with the options for reading.
        tensors: Tensors by their names in the file; empty if only the policy's shapes define them.
        settings: Configuration keys that the file contains.
        metadata: All metadata of the file.
        classes: Custom classes that the file names, by key: ``torch.encoder``, ``torch.network``.
        sizes: Sizes inferred from the tensors, by key, if ``settings`` come from metadata.
        statistics: Normalization statistics of observations; empty without normalization.
        statistics_inside: True if the statistics are in this file, False if they are next to it.
        bounds: Bounds of rescaled actions; empty without rescaling.
    """

    path: Path
    file: "FileFormat"
    tensors: dict[str, Any] = field(default_factory=dict)
    settings: SettingTexts = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    sizes: SettingTexts = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    statistics_inside: bool = False
    bounds: rescaling.Bounds = ()

    @property
    def kind(self) -> str:
        """Name of the policy file's format."""
        return self.file.name

    @property
    def step(self) -> int:
        """Environment steps of the policy's training, by metadata or file name; 0 if unknown."""
        match = STEP_SUFFIX.search(self.path.stem)
        text = self.metadata.get("step", "")
        return int(text) if text.isdecimal() else int(match[1]) if match else 0


class Option(NamedTuple):
    """A command-line option of one file format.

    Args:
        flag: Option as typed.
        argument: Field of the format that the option sets.
        export_help: Help text for exports.
        import_help: Help text for imports; empty if the option applies only to exports.
        values: Typed word -> value of the field; empty for a switch.
    """

    flag: str
    argument: str
    export_help: str
    import_help: str = ""
    values: Mapping[str, Any] = {}


@dataclass(frozen=True)
class FileFormat:
    """Base class of the formats of policy files. Fields of a derived class are user options.

    Attributes:
        name: Name in ``--to`` and in messages.
        suffixes: Allowed file suffixes; the first is the default.
        layouts: Weight layouts that a file can have; the first is the default for other policies.
        tolerance: Largest relative difference of outputs; 0 for equal bits.
        purpose: Purpose in a few words, for --help.
        supported: Supported policies, for the table in docs/export.md.
        content: Description of files that start with ``first_bytes``, for a message.
        first_bytes: First bytes of its files, if they identify the format.
        packages: Packages needed for writing and comparing.
        extra: Extra of puffer-mlx that installs these packages.
        external: True if another program runs the files.
        rescales: True if it can hold the bounds of rescaled actions.
        options: Command-line options of this format.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    layouts: ClassVar[tuple[str, ...]]
    tolerance: ClassVar[float]
    purpose: ClassVar[str]
    supported: ClassVar[str]
    content: ClassVar[str] = ""
    first_bytes: ClassVar[tuple[bytes, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""
    external: ClassVar[bool] = False
    rescales: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = ()

    # ---- writing ---------------------------------------------------------------------------------

    def unsupported_reason(self, policy: Policy) -> str | None:
        """Return the reason why this file format can't hold a policy, or None if it can."""
        return None

    def lossy_notes(self, contents: ExportInput) -> list[str]:
        """Return notes on what an exported file loses, for example normalization statistics.

        The outputs of its policy may then differ.

        Raises:
            UserError: If the file would lose something that the caller didn't accept.
        """
        return []

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write a policy to a file of this format.

        Args:
            contents: Policy to write.
            path: Temporary file with a suffix of the format.
        """
        raise NotImplementedError

    def notes(self, contents: ExportInput) -> list[str]:
        """Return notes for the user of an exported policy file, for example on normalization."""
        notes = []
        if normalization.normalises(contents.statistics):
            notes.append("the file normalizes observations: give it raw ones")
        if contents.bounds:
            notes.append(
                "the file rescales actions to the environment's units; the environment must clip"
                " them"
            )
        return notes

    def write_beside(self, contents: ExportInput, path: Path) -> list[str]:
        """Write what an exported policy file can't hold to files next to it. Returns notes.

        Args:
            contents: The exported policy.
            path: The published file.
        """
        return []

    # ---- reading ---------------------------------------------------------------------------------

    def read(self, path: Path) -> PolicyFile:
        """Read a policy file. Statistics and bounds remain among the tensors.

        Raises:
            UserError: If the file is damaged, has another format, or holds an unknown policy.
            OSError: If the file can't be read.
        """
        raise NotImplementedError

    def sizes_for(self, source: PolicyFile, spec: EnvSpec, config: Config) -> SettingTexts:
        """Return a policy's settings that can only be inferred if the environment is known.

        Raises:
            UserError: If no policy for the environment fits the file, or several do.
        """
        return {}

    def weight_layout(self, source: PolicyFile, requested: str) -> str:
        """Return the weight layout of the policy in a file, such as ``torch`` or ``native``.

        Args:
            source: The file.
            requested: Weight layout in the configuration.

        Raises:
            UserError: If the layout is ambiguous: torch and puffer3 have equal tensor names.
        """
        if "policy.dialect" in source.settings:
            return source.settings["policy.dialect"]
        if requested == "native" and "decoder.actions.weight" in source.tensors:
            raise UserError(
                f"{source.path} doesn't record its weight layout: the encoder may have a GELU or"
                " none",
                "--policy.dialect torch (none), or --policy.dialect puffer3",
            )
        return requested

    def weights(self, source: PolicyFile, policy: Policy) -> Weights:
        """Return the weights of a policy file by our tensor names, in the file's weight layout.

        Raises:
            UserError: If the weights don't fit the policy, or a value isn't finite.
        """
        tensors = {name: mx.array(w) for name, w in source.tensors.items()}
        return weight_files.check_and_convert(source.path, tensors, policy.init(mx.random.key(0)))

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> NamedOutputs:
        """Run the policy of a file with its statistics and bounds. Returns the outputs.

        This default implementation reads the file and runs the policy in puffer_mlx.

        Args:
            source: The file.
            policy: Policy in the file's weight layout.
            observations: Raw observations (T, S, D).

        Raises:
            UserError: If a package is missing, or the file doesn't fit the policy.
        """
        return policy_outputs(policy, self.weights(source, policy), observations, source.statistics)


# ---- notes ---------------------------------------------------------------------------------------


def reset_note(contents: ExportInput) -> list[str]:
    """Return a note that a policy file's user must reset the recurrent state at episode ends.

    The list is empty if the policy needs no resets.
    """
    text = "trained with policy.reset_on_terminal: set the state to 0 where an episode ends"
    return [text] if contents.policy.reset_on_terminal else []


def mask_note(contents: ExportInput) -> list[str]:
    """Return a note that a policy file's user must apply action masks to the logits.

    The list is empty if the environment has no action masks.
    """
    text = "apply action masks yourself: set the logits of illegal actions to -1e4"
    return [text] if contents.checkpoint.spec.mask_size else []


def require_packages(extra: str, *packages: str) -> None:
    """Check that optional packages are installed.

    Raises:
        UserError: If one is missing; the hint names the extra that installs it.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise UserError(
                f"{error.name} is not installed", f"pip install 'puffer-mlx[{extra}]'"
            ) from None
