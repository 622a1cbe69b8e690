"""Weights to files and back: safetensors, and upstream's flat ``.bin`` (``flat_files.py``)."""

from collections.abc import Mapping
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
    memory: normalization.Memory | None = None,
    bounds: rescaling.Bounds = (),
) -> None:
    """Write weights under their dotted names (``encoder.weight``, ``network.0.weight``, ...).

    Args:
        weights: a tree of arrays.
        path: the file.
        metadata: what else to say in it.
        memory: the statistics that the policy's observations are normalised by, if they are.
        bounds: what its actions are rescaled to, if they are.
    """
    beside = {
        **normalization.tensors_of(normalization.with_rest(memory or {})),
        **rescaling.tensors_of(bounds),
    }
    tensors = dict(named(weights)) | {name: mx.array(array) for name, array in beside.items()}
    tensor_files.write(path, tensors, metadata or {})


def load_weights(path: Path | str, like: Weights, alignment: int = BF16) -> Weights:
    """Read weights from a ``.safetensors`` or ``.bin`` file.

    The statistics that observations are normalised by are read apart (``environment_statistics``).
    Warns if the file is one of those of PufferLib that lack numbers; they become 0.

    Args:
        path: the file; its suffix says which kind it is.
        like: weights of the policy they're for; gives names, order and shapes.
        alignment: the build of upstream that wrote a ``.bin`` file, where its size can't tell.

    Raises:
        UserError: the file is missing, of another kind, damaged, or of another policy.
    """
    path = Path(path)
    try:
        if path.suffix == ".bin":
            return read_bin(path, like, alignment)
        if path.suffix == ".safetensors":
            return _read_safetensors(path, like)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", "check the path") from None
    raise UserError(
        f"{path} is neither a .safetensors nor a .bin file",
        f"import it: {program.command('import')} {path} ENV"
        if path.is_file()
        else "name a checkpoint",
    )


def _read_safetensors(path: Path, like: Weights) -> Weights:
    """``load_weights`` of a safetensors file; a missing one is an OSError."""
    header = tensor_files.read_header(path)
    shapes = {
        name: entry.shape
        for name, entry in header.tensors.items()
        if not name.startswith(normalization.PREFIX) and name not in rescaling.NAMES
    }
    _check_shapes(path, shapes, like)
    return fit(path, weights_in(path, tensor_files.read(path)[0]), like)


def weights_in(path: Path, tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights among a file's tensors, without what goes with a policy beside them.

    Raises:
        UserError: that is damaged.
    """
    return rescaling.take(path, normalization.take(path, tensors)[0])[0]


def fit(path: Path, loaded: dict[str, mx.array], like: Weights) -> Weights:
    """Tensors by our names as weights like others.

    Raises:
        UserError: there are others, of other shapes, or numbers that aren't finite.
    """
    _check_shapes(path, {name: w.shape for name, w in loaded.items()}, like)
    weights = tree_map_with_path(lambda name, _: loaded[name].astype(mx.float32), like)
    if not all(mx.isfinite(w).all().item() for _, w in named(weights)):
        raise UserError(f"{path} holds numbers that aren't finite", "the file is damaged")
    return weights


def _check_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]], like: Weights) -> None:
    """Refuse tensors of other names or shapes."""
    tensors = dict(named(like))
    wrong = [
        f"{name}: {shapes.get(name, 'missing')}, expected {w.shape}"
        for name, w in tensors.items()
        if shapes.get(name) != w.shape
    ] + [f"{name}: not in this policy" for name in shapes if name not in tensors]
    if wrong:
        raise UserError(
            f"{path} is of another policy: {'; '.join(wrong)}",
            "compare policy.hidden_size and policy.num_layers with the config.ini beside the file",
        )
