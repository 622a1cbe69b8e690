"""Policies to files that other programs read, each compared with ours before it is published.

What a kind of file is (how it is written, read and run, and what it can't hold) is its object in
``formats/``. A policy of normalised observations takes their statistics along, where its file can
hold them.

A file is read back from the disk and run by the other side: PyTorch, onnxruntime, or our own
reader, on observations as the environment shows them. Where its outputs over a sequence of them, or
the state after it, differ from ours by more than the format's tolerance, or what float32 tells
apart where that is more (``parity.judge``), nothing is published. Exporting needs no GPU; the
comparison is of whatever MLX's default device computes, and exact tolerances hold on a CPU.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import WEIGHTS, Checkpoint, normalization
from puffer_mlx.errors import UserError
from puffer_mlx.export import formats
from puffer_mlx.export.dialects import dialect_of, to_dialect
from puffer_mlx.export.file_format import Contents, FileFormat, need
from puffer_mlx.export.importing import opened
from puffer_mlx.export.parity import judge, random_observations
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.files import publish
from puffer_mlx.trees import named


class Format:
    """A format with its options, and the dialect of the policy in the file.

    Args:
        kind: the format's name: ``bin``, ``torch``, ``safetensors``, ``onnx``, ...
        dialect: of the policy in the file; None keeps its own where the format has it.
        options: the format's own: of a flat file ``alignment``, ``whole`` and ``lossy``.

    Raises:
        UserError: there is no such format, or it has no such option.
    """

    def __init__(self, kind: str, dialect: str | None = None, **options: Any) -> None:
        self.file = formats.chosen(kind, **options)
        self.kind, self.dialect = kind, dialect


class Report(NamedTuple):
    """A written file.

    Args:
        path: the file.
        dialect: of the policy in it.
        tensors: how many.
        parameters: numbers in them.
        difference: the largest of any output, relative to that output's largest number, or to 1 if
            that is less.
        worst: the output that has it.
        tolerance: what ``difference`` may be; infinite for a file that lacks something.
        observations: what it was measured on.
        notes: for users of the file.
    """

    path: Path
    dialect: str
    tensors: int
    parameters: int
    difference: float
    worst: str
    tolerance: float
    observations: str
    notes: list[str]


def export(checkpoint: Checkpoint, form: Format, path: Path, recorded: mx.array | None) -> Report:
    """Write a checkpoint's policy as another kind of file, and compare the two.

    Args:
        checkpoint: of the policy.
        form: what to write.
        path: where; what is there is replaced.
        recorded: observations (T, S, D), as the policy saw them, to compare on; None draws some.

    Raises:
        UserError: the format can't hold the policy (the message names the part), a package is
            missing, the file's outputs differ, or it can't be written.
    """
    file = form.file
    _check_path(file, path)
    dialect = _choose_dialect(file, checkpoint.policy, form.dialect)
    contents = Contents(checkpoint, *to_dialect(checkpoint.policy, checkpoint.weights, dialect))
    _check_policy(file, contents.policy)
    losses = file.losses(contents)
    if recorded is None:
        observations = random_observations(checkpoint.spec, checkpoint.memory)
    else:  # as the environment shows them
        observations = normalization.undo(checkpoint.memory, np.array(recorded))
    with publish(path, named=True) as temporary:
        file.write(contents, temporary)
        theirs = file.run(opened(temporary, file), contents.policy, observations)
        least = math.inf if losses else file.tolerance
        compared = judge(
            checkpoint.policy, checkpoint.weights, observations, checkpoint.memory, theirs, least
        )
        if not compared.same:
            raise UserError(
                f"{path} would not be the same policy: its {compared.worst} differs from ours by"
                f" {compared.difference:.2g} of its scale, more than {compared.tolerance:g};"
                " nothing was written",
                "are the weights finite? If they are, this is a defect of puffer_mlx: report it",
            )
    T, S = observations.shape[:2]
    kind = "random (seed 0)" if recorded is None else "recorded"
    sizes = [w.size for _, w in named(contents.weights)]
    return Report(
        path=path,
        dialect=dialect,
        tensors=len(sizes),
        parameters=sum(sizes),
        difference=compared.difference,
        worst=compared.worst,
        tolerance=compared.tolerance,
        observations=f"{S} sequences of {T} {kind} observations",
        notes=file.notes(contents) + losses + file.write_beside(contents, path),
    )


def _check_path(file: FileFormat, path: Path) -> None:
    if path.suffix not in file.suffixes:
        raise UserError(
            f"{path}: a file of kind {file.name} is named {' or '.join(file.suffixes)}",
            f"{path.with_suffix(file.suffixes[0])}",
        )
    if (path.parent / WEIGHTS).is_file():
        raise UserError(
            f"{path.parent} is a checkpoint, whose files are its own", "--out FILE elsewhere"
        )


def _choose_dialect(file: FileFormat, policy: Policy, asked: str | None) -> str:
    current = dialect_of(policy)
    dialect = asked or (current if current in file.dialects else file.dialects[0])
    if dialect not in file.dialects:
        raise UserError(
            f"files of kind {file.name} hold the {' or the '.join(file.dialects)} dialect,"
            f" not {dialect}",
            f"--dialect {file.dialects[0]}",
        )
    return dialect


def _check_policy(file: FileFormat, policy: Policy) -> None:
    """Refuse what a format can't hold, and a missing package."""
    if fault := file.fault(policy):
        others = [name for name, other in formats.by_name().items() if not other.fault(policy)]
        raise UserError(fault, f"this policy can be exported with --to {' or '.join(others)}")
    need(file.extra, *file.packages)
