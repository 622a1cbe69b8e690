"""The interface of a file format; ``formats/`` has one object for each."""

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
from puffer_mlx.export.parity import Outputs, run
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

Weights = Any
Settings = dict[str, str]  # of the configuration, by key: policy.hidden_size, torch.network, ...
DAMAGED = "the file is damaged"
STEP = re.compile(r"(?:^|_)(\d{16})$")  # how the names of PufferLib's checkpoints and ours end


@contextlib.contextmanager
def read_by(library: str, path: Path, hint: str = DAMAGED) -> Iterator[None]:
    """Report what a library raises about a file's contents as a UserError.

    Libraries raise exceptions of many kinds for damaged files, so all are caught: the block may
    call the library and nothing of ours.

    Args:
        library: Its name, for the message.
        path: The file.
        hint: How to put it right.

    Raises:
        UserError: The library refused the file.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} can't be read by {library}: {reason}", hint) from None


class Contents(NamedTuple):
    """What a file is written from.

    Args:
        checkpoint: where it comes from.
        policy: the checkpoint's, in the file's dialect.
        weights: of that.
    """

    checkpoint: Checkpoint
    policy: Policy
    weights: Weights

    @property
    def memory(self) -> normalization.Memory:
        """The statistics that the policy's observations are normalised by; none if they aren't."""
        return self.checkpoint.memory

    @property
    def bounds(self) -> rescaling.Bounds:
        """What the policy's actions are rescaled to; none if they aren't."""
        return self.checkpoint.spec.action.bounds


@dataclass
class PolicyFile:
    """A policy's file, as it was read.

    Args:
        path: the file.
        file: its format, with the options that it is to be read with.
        tensors: by the file's names; none where only the policy tells how to take it apart.
        settings: of the configuration, as far as the file has them.
        metadata: all that the file says.
        classes: those that it names beyond ours, by key: ``torch.encoder``, ``torch.network``.
        sizes: those of its tensors, by key, where ``settings`` are words that may say otherwise.
        memory: the statistics that the policy's observations are normalised by; none if they
            aren't.
        inside: whether the statistics are the file's own, and not beside it.
        bounds: what the policy's actions are rescaled to; none if they aren't.
    """

    path: Path
    file: "FileFormat"
    tensors: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    sizes: Settings = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    inside: bool = False
    bounds: rescaling.Bounds = ()

    @property
    def kind(self) -> str:
        """The format's name."""
        return self.file.name

    @property
    def step(self) -> int:
        """Environment steps of the run so far: the metadata's, or the file's name, or 0."""
        named, text = STEP.search(self.path.stem), self.metadata.get("step", "")
        return int(text) if text.isdecimal() else int(named[1]) if named else 0


class Option(NamedTuple):
    """An option that the scripts have for one format alone.

    Args:
        flag: as it is typed.
        argument: the field of the format that it sets.
        writing: what it does to an export, for --help.
        reading: what it does to an import, for --help; an export's only if empty.
        values: of the field, by the word that is typed; none for a switch.
    """

    flag: str
    argument: str
    writing: str
    reading: str = ""
    values: Mapping[str, Any] = {}


@dataclass(frozen=True)
class FileFormat:
    """A kind of file. The fields of a class derived from it are what a caller may choose.

    Attributes:
        name: as in ``--to``, and in messages.
        suffixes: of its files' names; the first is what a file gets by itself.
        dialects: of the policies that it can hold; the first where the policy's own isn't one.
        tolerance: how far outputs may be off, relative to their scale; 0 for the same bits.
        use: what it is for, a few words for --help.
        holds: what it holds, for the table in docs/export.md.
        content: what a file is that begins as ``begins`` says, for a message; else empty.
        begins: how its files begin, where that tells them from others.
        packages: that writing and comparing it need.
        extra: of puffer-mlx, with which pip installs those.
        foreign: whether another program than puffer_mlx runs it.
        rescales: whether it can hold what actions are rescaled to.
        options: of the scripts, for it alone.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    dialects: ClassVar[tuple[str, ...]]
    tolerance: ClassVar[float]
    use: ClassVar[str]
    holds: ClassVar[str]
    content: ClassVar[str] = ""
    begins: ClassVar[tuple[bytes, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""
    foreign: ClassVar[bool] = False
    rescales: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = ()

    # ---- writing ---------------------------------------------------------------------------------

    def fault(self, policy: Policy) -> str | None:
        """The part of a policy that it can't hold; None if it can hold all."""
        return None

    def losses(self, contents: Contents) -> list[str]:
        """Notes on what else it lacks, where the caller agreed to that. Outputs may differ then.

        Raises:
            UserError: it lacks something, and the caller didn't agree.
        """
        return []

    def write(self, contents: Contents, path: Path) -> None:
        """Write a file; ``path`` is a temporary one, with one of the suffixes."""
        raise NotImplementedError

    def notes(self, contents: Contents) -> list[str]:
        """What whoever uses a file must know: that statistics and bounds are in it."""
        notes = []
        if normalization.normalises(contents.memory):
            notes.append("observations are normalised inside: give it the environment's own")
        if contents.bounds:
            notes.append(
                "actions are rescaled inside: they come in the environment's units, to be clipped"
                " there"
            )
        return notes

    def write_beside(self, contents: Contents, path: Path) -> list[str]:
        """Write what ``path``, which is published, can't hold into other files; notes on that."""
        return []

    # ---- reading ---------------------------------------------------------------------------------

    def read(self, path: Path) -> PolicyFile:
        """What a file holds, but for ``memory`` and ``bounds``: their tensors are among the others.

        Raises:
            UserError: it isn't such a file, is damaged, or holds no policy that puffer_mlx has.
            OSError: it can't be read.
        """
        raise NotImplementedError

    def sizes_for(self, source: PolicyFile, spec: EnvSpec, config: Config) -> Settings:
        """Settings that a file tells only together with the environment that it is for.

        Raises:
            UserError: it fits no policy of that environment, or several.
        """
        return {}

    def dialect(self, source: PolicyFile, asked: str) -> str:
        """The dialect of a file's policy; ``asked`` is the configuration's.

        Raises:
            UserError: the file doesn't tell: names of tensors don't tell torch from puffer3.
        """
        if "policy.dialect" in source.settings:
            return source.settings["policy.dialect"]
        if asked == "native" and "decoder.actions.weight" in source.tensors:
            raise UserError(
                f"{source.path} doesn't tell its dialect: the encoder may have a GELU or none",
                "--policy.dialect torch (none), or --policy.dialect puffer3",
            )
        return asked

    def weights(self, source: PolicyFile, policy: Policy) -> Weights:
        """The weights of a file as those of a policy of its dialect: our own names.

        Raises:
            UserError: they are another policy's, or aren't finite.
        """
        tensors = {name: mx.array(w) for name, w in source.tensors.items()}
        return weight_files.fit(source.path, tensors, policy.init(mx.random.key(0)))

    def run(self, source: PolicyFile, policy: Policy, observations: np.ndarray) -> Outputs:
        """A file's outputs, with the statistics and bounds in it; here by our own reader.

        Args:
            source: the file.
            policy: what it is of, in its dialect.
            observations: (T, S, D), as the environment shows them.

        Raises:
            UserError: a package is missing, or the file isn't the policy's.
        """
        return run(policy, self.weights(source, policy), observations, source.memory)


# ---- notes ---------------------------------------------------------------------------------------


def reset_note(contents: Contents) -> list[str]:
    """For formats whose users zero the state themselves."""
    text = "trained with policy.reset_on_terminal: zero the state where an episode ends"
    return [text] if contents.policy.reset_on_terminal else []


def mask_note(contents: Contents) -> list[str]:
    """For formats whose users draw the actions themselves."""
    text = "action masks are the caller's: set the logits of illegal actions to -1e4"
    return [text] if contents.checkpoint.spec.mask_size else []


def need(extra: str, *packages: str) -> None:
    """Check for packages that puffer_mlx itself doesn't need.

    Raises:
        UserError: one isn't installed; ``pip install 'puffer-mlx[EXTRA]'`` has them.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise UserError(
                f"{error.name} is not installed", f"pip install 'puffer-mlx[{extra}]'"
            ) from None
