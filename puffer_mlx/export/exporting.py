"""Export policies to files of other programs, and compare outputs before publishing a file.

Each format is an object in ``formats/``, which writes, reads and runs its files and knows which
policies it can't hold. Normalization statistics are exported too if the format can hold them.

The new file is read back and run by PyTorch, onnxruntime or our reader on raw observations of the
environment. If outputs or the final state differ from ours by more than the tolerance, the file
isn't published. The tolerance is the format's, or float32's resolution if larger
(``parity.compare_outputs``). The comparison uses MLX's default device; formats with tolerance 0 are
exact on a CPU.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import WEIGHTS, Checkpoint, normalization
from puffer_mlx.errors import UserError
from puffer_mlx.export import formats
from puffer_mlx.export.file_format import ExportInput, FileFormat, need
from puffer_mlx.export.importing import read_policy_file
from puffer_mlx.export.parity import compare_outputs, random_observations
from puffer_mlx.export.weight_layouts import layout_of, to_layout
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.files import publish
from puffer_mlx.trees import named_arrays


class Format:
    """A file format with options and the dialect of the exported policy.

    Args:
        kind: Name of the format: ``bin``, ``torch``, ``safetensors``, ``onnx``, ...
        dialect: Dialect in the file; None for the policy's dialect if the format supports it.
        options: Options of the format: ``alignment``, ``whole`` and ``lossy`` for a flat file.

    Raises:
        UserError: If the format or an option doesn't exist.
    """

    def __init__(self, kind: str, dialect: str | None = None, **options: Any) -> None:
        self.file = formats.make_format(kind, **options)
        self.kind, self.dialect = kind, dialect


class Report(NamedTuple):
    """Result of an export.

    Args:
        path: The written file.
        dialect: Dialect of the policy in the file.
        tensors: Number of tensors.
        parameters: Number of values in all tensors.
        difference: Largest difference of any output, divided by the output's largest value or 1,
            whichever is larger.
        worst: Name of the output with that difference.
        tolerance: Largest allowed ``difference``; infinite for a file with accepted losses.
        observations: Description of the observations used for the comparison.
        notes: Notes for users of the file.
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
    """Write the policy of a checkpoint to a file, and compare its outputs with ours.

    Args:
        checkpoint: Checkpoint with the policy.
        form: Format to write.
        path: File to write; an existing file is replaced.
        recorded: Observations (T, S, D) as the policy saw them, for the comparison; None for random
            ones.

    Raises:
        UserError: If the format can't hold the policy (the message names the part), a package is
            missing, outputs differ, or the file can't be written.
    """
    file = form.file
    _check_path(file, path)
    dialect = _choose_dialect(file, checkpoint.policy, form.dialect)
    contents = ExportInput(checkpoint, *to_layout(checkpoint.policy, checkpoint.weights, dialect))
    _check_policy(file, contents.policy)
    losses = file.lossy_notes(contents)
    if recorded is None:
        observations = random_observations(checkpoint.spec, checkpoint.statistics)
    else:  # raw observations
        observations = normalization.denormalize_observations(
            checkpoint.statistics, np.array(recorded)
        )
    with publish(path, user_named=True) as temporary:
        file.write(contents, temporary)
        theirs = file.run(read_policy_file(temporary, file), contents.policy, observations)
        least = math.inf if losses else file.tolerance
        compared = compare_outputs(
            checkpoint.policy,
            checkpoint.weights,
            observations,
            checkpoint.statistics,
            theirs,
            least,
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
    sizes = [w.size for _, w in named_arrays(contents.weights)]
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
    current = layout_of(policy)
    dialect = asked or (current if current in file.dialects else file.dialects[0])
    if dialect not in file.dialects:
        raise UserError(
            f"files of kind {file.name} hold the {' or the '.join(file.dialects)} dialect,"
            f" not {dialect}",
            f"--dialect {file.dialects[0]}",
        )
    return dialect


def _check_policy(file: FileFormat, policy: Policy) -> None:
    """Raise an error if the format can't hold the policy or a package is missing."""
    if reason := file.unsupported_reason(policy):
        every = formats.by_name().items()
        others = [name for name, other in every if not other.unsupported_reason(policy)]
        raise UserError(reason, f"this policy can be exported with --to {' or '.join(others)}")
    need(file.extra, *file.packages)
