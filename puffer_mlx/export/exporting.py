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
from puffer_mlx.export.file_format import ExportInput, FileFormat, require_packages
from puffer_mlx.export.importing import read_policy_file
from puffer_mlx.export.parity import compare_outputs, random_observations
from puffer_mlx.export.weight_layouts import layout_of, to_layout
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.files import publish
from puffer_mlx.trees import named_arrays


class ExportFormat:
    """Target of a policy's export: a ``FileFormat`` with its options, and a weight layout.

    Args:
        kind: Name of the format: ``bin``, ``torch``, ``safetensors``, ``onnx``, ...
        layout: Weight layout in the file (``policy.dialect``); None for the policy's layout if the
            format supports it.
        options: Options of the format: ``alignment``, ``whole`` and ``lossy`` for a flat file.

    Raises:
        UserError: If the format or an option doesn't exist.
    """

    def __init__(self, kind: str, layout: str | None = None, **options: Any) -> None:
        self.file = formats.make_format(kind, **options)
        self.kind = kind
        self.layout = layout


class ExportReport(NamedTuple):
    """Result of a policy's export: the file, its size, and how its outputs differ from ours.

    Args:
        path: The written file.
        layout: Weight layout of the policy in the file.
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
    layout: str
    tensors: int
    parameters: int
    difference: float
    worst: str
    tolerance: float
    observations: str
    notes: list[str]


def export(
    checkpoint: Checkpoint, export_format: ExportFormat, path: Path, recorded: mx.array | None
) -> ExportReport:
    """Export the policy of a checkpoint to a file, and compare its outputs with ours.

    Args:
        checkpoint: Checkpoint with the policy.
        export_format: Format to write.
        path: File to write; an existing file is replaced.
        recorded: Normalized observations (T, S, D) from a rollout, for the comparison; None for
            random ones.

    Raises:
        UserError: If the format can't hold the policy (the message says why), a package is missing,
            outputs differ, or the file can't be written.
    """
    file = export_format.file
    _check_path(file, path)
    layout = _choose_layout(file, checkpoint.policy, export_format.layout)
    contents = ExportInput(checkpoint, *to_layout(checkpoint.policy, checkpoint.weights, layout))
    _check_policy(file, contents.policy)
    losses = file.lossy_notes(contents)
    if recorded is None:
        observations = random_observations(checkpoint.spec, checkpoint.statistics)
    else:
        observations = normalization.denormalize_observations(
            checkpoint.statistics, np.array(recorded)
        )
    with publish(path, user_named=True) as temporary:
        file.write(contents, temporary)
        source = read_policy_file(temporary, file)
        file_outputs = file.run(source, contents.policy, observations)
        min_tolerance = math.inf if losses else file.tolerance
        comparison = compare_outputs(
            checkpoint.policy,
            checkpoint.weights,
            observations,
            checkpoint.statistics,
            file_outputs,
            min_tolerance,
        )
        if not comparison.matches:
            raise UserError(
                f"{path} was not written: its {comparison.worst} would differ from ours by"
                f" {comparison.difference:.2g} of its scale, more than {comparison.tolerance:g}",
                "check that the weights are finite; if they are, report this as a bug",
            )
    T, S = observations.shape[:2]
    kind = "random (seed 0)" if recorded is None else "recorded"
    sizes = [w.size for _, w in named_arrays(contents.weights)]
    return ExportReport(
        path=path,
        layout=layout,
        tensors=len(sizes),
        parameters=sum(sizes),
        difference=comparison.difference,
        worst=comparison.worst,
        tolerance=comparison.tolerance,
        observations=f"{S} sequences of {T} {kind} observations",
        notes=file.notes(contents) + losses + file.write_beside(contents, path),
    )


def _check_path(file: FileFormat, path: Path) -> None:
    """Raise an error if a policy can't be exported to a path: wrong suffix, or in a checkpoint."""
    if path.suffix not in file.suffixes:
        raise UserError(
            f"{path}: the name of a {file.name} file ends with {' or '.join(file.suffixes)}",
            f"{path.with_suffix(file.suffixes[0])}",
        )
    if (path.parent / WEIGHTS).is_file():
        raise UserError(
            f"{path.parent} is a checkpoint, and can't contain other files",
            "choose another folder: --out FILE",
        )


def _choose_layout(file: FileFormat, policy: Policy, requested: str | None) -> str:
    """Choose an exported policy's weight layout: as requested, its own, or the format's default."""
    current = layout_of(policy)
    layout = requested or (current if current in file.layouts else file.layouts[0])
    if layout not in file.layouts:
        raise UserError(
            f"{file.name} files can't have the weight layout {layout}, only"
            f" {' or '.join(file.layouts)}",
            f"--dialect {file.layouts[0]}",
        )
    return layout


def _check_policy(file: FileFormat, policy: Policy) -> None:
    """Raise an error if a format can't hold a policy or a package for the format is missing."""
    if reason := file.unsupported_reason(policy):
        supporting = [
            name
            for name, each in formats.all_formats().items()
            if not each.unsupported_reason(policy)
        ]
        raise UserError(reason, f"this policy can be exported with --to {' or '.join(supporting)}")
    require_packages(file.extra, *file.packages)
