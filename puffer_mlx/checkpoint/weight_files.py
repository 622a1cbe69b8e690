"""Read and write weight files: safetensors, and PufferLib's flat ``.bin`` (``flat_files.py``)."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path

from puffer_mlx.checkpoint import normalization, rescaling, tensor_files
from puffer_mlx.checkpoint.flat_files import BF16, read_bin
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.trees import named_arrays

Weights = Any


def save_safetensors(
    weights: Weights,
    path: Path,
    metadata: dict[str, str] | None = None,
    statistics: normalization.Statistics | None = None,
    bounds: rescaling.Bounds = (),
) -> None:
    """Write a policy's weights to a safetensors file, with the statistics and bounds it needs.

    Tensors are named by their path in the tree: ``encoder.weight``, ``network.0.weight``, ...

    Args:
        weights: Tree of arrays.
        path: File to write.
        metadata: Additional texts by key.
        statistics: Normalization statistics of observations.
        bounds: Bounds of rescaled actions.
    """
    preprocessing = {
        **normalization.statistics_tensors(normalization.with_rounding_error(statistics or {})),
        **rescaling.bounds_tensors(bounds),
    }
    tensors = dict(named_arrays(weights))
    tensors |= {name: mx.array(array) for name, array in preprocessing.items()}
    tensor_files.write_tensors(path, tensors, metadata or {})


def load_weights(path: Path | str, template: Weights, alignment: int = BF16) -> Weights:
    """Read a policy's weights from a ``.safetensors`` or ``.bin`` file, without statistics.

    Warns if a file from PufferLib lacks the last values; these become 0.

    Args:
        path: File to read; the suffix selects the format.
        template: Weights of the same policy, which give names, order and shapes.
        alignment: Alignment of tensors in ``.bin`` files, as in ``read_bin``.

    Raises:
        UserError: The file is missing, damaged, in another format, or of another policy.
    """
    path = Path(path)
    try:
        if path.suffix == ".bin":
            return read_bin(path, template, alignment)
        if path.suffix == ".safetensors":
            tensors, _ = tensor_files.read_tensors(path)
            return check_and_convert(path, policy_tensors(path, tensors), template)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", "check the path") from None
    raise UserError(
        f"{path} is neither a .safetensors nor a .bin file",
        f"import it: {program.command('import')} {path} ENV"
        if path.is_file()
        else "name a checkpoint",
    )


def policy_tensors(path: Path, tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the weights among a weight file's tensors, without statistics and action bounds.

    Raises:
        UserError: The statistics or bounds are damaged.
    """
    without_statistics, _ = normalization.split_statistics(path, tensors)
    weights, _ = rescaling.split_bounds(path, without_statistics)
    return weights


def check_and_convert(path: Path, loaded: dict[str, mx.array], template: Weights) -> Weights:
    """Check tensors read from a file and return them as a tree of float32 weights.

    Args:
        path: File, for messages.
        loaded: Tensors by dotted name.
        template: Weights of the same policy, which give names and shapes.

    Raises:
        UserError: Names or shapes differ, or a value isn't finite.
    """
    expected = dict(named_arrays(template))
    shapes = {name: w.shape for name, w in loaded.items()}
    wrong = [
        f"{name}: {shapes.get(name, 'missing')}, expected {w.shape}"
        for name, w in expected.items()
        if shapes.get(name) != w.shape
    ] + [f"{name}: not in this policy" for name in shapes if name not in expected]
    if wrong:
        raise UserError(
            f"{path} is of another policy: {'; '.join(wrong)}",
            "compare policy.hidden_size and policy.num_layers with the config.ini beside the file",
        )
    weights = tree_map_with_path(lambda name, _: loaded[name].astype(mx.float32), template)
    if not all(mx.isfinite(w).all().item() for _, w in named_arrays(weights)):
        raise UserError(f"{path} contains NaN or infinite values", "the file is damaged")
    return weights
