"""Read and write weight files: safetensors, and PufferLib's flat ``.bin`` (``flat_files.py``)."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path

from puffer_mlx.checkpoint import normalization, rescaling, tensor_files
from puffer_mlx.checkpoint.flat_files import BF16, read_bin
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.trees import named

Weights = Any


def save_safetensors(
    weights: Weights,
    path: Path,
    metadata: dict[str, str] | None = None,
    statistics: normalization.Statistics | None = None,
    bounds: rescaling.Bounds = (),
) -> None:
    """Write weights under their dotted names (``encoder.weight``, ``network.0.weight``, ...).

    Args:
        weights: Tree of arrays.
        path: File to write.
        metadata: Additional texts by key.
        statistics: Normalization statistics of observations.
        bounds: Bounds of rescaled actions.
    """
    beside = {
        **normalization.tensors_of(normalization.with_rest(statistics or {})),
        **rescaling.tensors_of(bounds),
    }
    tensors = dict(named(weights)) | {name: mx.array(array) for name, array in beside.items()}
    tensor_files.write(path, tensors, metadata or {})


def load_weights(path: Path | str, like: Weights, alignment: int = BF16) -> Weights:
    """Read weights from a ``.safetensors`` or ``.bin`` file, without normalization statistics.

    Warns if a file of PufferLib lacks its last values; these become 0.

    Args:
        path: File to read; the suffix selects the format.
        like: Weights that give names, order and shapes.
        alignment: For ``.bin`` files, as in ``read_bin``.

    Raises:
        UserError: If the file is missing, damaged, of another format, or of another policy.
    """
    path = Path(path)
    try:
        if path.suffix == ".bin":
            return read_bin(path, like, alignment)
        if path.suffix == ".safetensors":
            tensors, _ = tensor_files.read(path)
            return check_and_convert(path, policy_tensors(path, tensors), like)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", "check the path") from None
    raise UserError(
        f"{path} is neither a .safetensors nor a .bin file",
        f"import it: {program.command('import')} {path} ENV"
        if path.is_file()
        else "name a checkpoint",
    )


def policy_tensors(path: Path, tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the weights among a file's tensors, without statistics and bounds.

    Raises:
        UserError: If the statistics or bounds are damaged.
    """
    return rescaling.split_bounds(path, normalization.split_statistics(path, tensors)[0])[0]


def check_and_convert(path: Path, loaded: dict[str, mx.array], like: Weights) -> Weights:
    """Return tensors by dotted name as a tree of float32 weights.

    Args:
        path: File, for messages.
        loaded: Tensors by dotted name.
        like: Weights that give names and shapes.

    Raises:
        UserError: If names or shapes differ, or a value isn't finite.
    """
    expected = dict(named(like))
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
    weights = tree_map_with_path(lambda name, _: loaded[name].astype(mx.float32), like)
    if not all(mx.isfinite(w).all().item() for _, w in named(weights)):
        raise UserError(f"{path} holds numbers that aren't finite", "the file is damaged")
    return weights
