"""Weights to files and back: safetensors, and upstream's flat ``.bin``.

The flat file is headerless little-endian float32, every tensor row-major, in the order of the
weights' dictionary: encoder, decoder (the value is its last row), network. It holds the policy that
upstream's CUDA backend trains, tensor for tensor, so export is a write. Discrete policies with a
hidden size divisible by 8 never need upstream's padding.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from puffer_mlx.errors import UserError
from puffer_mlx.files import publish
from puffer_mlx.trees import named

Weights = Any


def save_safetensors(weights: Weights, path: Path) -> None:
    """Write weights under their dotted names (``encoder.weight``, ``network.0.weight``, ...)."""
    with publish(path) as temporary:
        _writing(mx.save_safetensors, temporary, dict(named(weights)))


def save_bin(weights: Weights, path: Path) -> None:
    """Write weights as upstream's flat file."""
    flat = np.concatenate([np.asarray(w, dtype="<f4").ravel() for _, w in named(weights)])
    with publish(path) as temporary:
        temporary.write_bytes(flat.tobytes())


def load_weights(path: Path | str, like: Weights) -> Weights:
    """Read weights from a ``.safetensors`` or ``.bin`` file.

    Args:
        path: the file; its suffix says which kind it is.
        like: weights of the policy they're for; gives names, order and shapes.

    Raises:
        UserError: the file is missing, of another kind, damaged, or of another policy.
    """
    path = Path(path)
    try:
        if path.suffix == ".bin":
            return _read_bin(path, like)
        if path.suffix == ".safetensors":
            return _read_safetensors(path, like)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", "check the path") from None
    raise UserError(f"{path} is neither a .safetensors nor a .bin file", "name one of a checkpoint")


def _read_bin(path: Path, like: Weights) -> Weights:
    tensors = named(like)
    expected = 4 * sum(w.size for _, w in tensors)
    data = path.read_bytes()
    if len(data) != expected:
        shapes = ", ".join(f"{name} {w.shape}" for name, w in tensors)
        raise UserError(
            f"{path} has {len(data)} bytes, expected {expected}: float32 {shapes}",
            "the file is cut off or of another policy;"
            " compare policy.hidden_size and policy.num_layers",
        )
    flat = np.frombuffer(data, dtype="<f4")
    if not np.isfinite(flat).all():
        raise UserError(f"{path} holds numbers that aren't finite", "the file is damaged")
    stops = np.cumsum([w.size for _, w in tensors])[:-1]
    parts = np.split(flat, stops)
    return tree_unflatten(
        [
            (name, mx.array(part.reshape(w.shape)))
            for (name, w), part in zip(tensors, parts, strict=True)
        ]
    )


def _read_safetensors(path: Path, like: Weights) -> Weights:
    path.stat()  # a missing file is an OSError
    try:
        loaded = mx.load(str(path))
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"{path} can't be read as safetensors: {error}", "the file is damaged"
        ) from None
    assert isinstance(loaded, dict)
    tensors = dict(named(like))
    wrong = [
        f"{name}: {loaded[name].shape if name in loaded else 'missing'}, expected {w.shape}"
        for name, w in tensors.items()
        if name not in loaded or loaded[name].shape != w.shape
    ] + [f"{name}: not in this policy" for name in loaded if name not in tensors]
    if wrong:
        raise UserError(
            f"{path} is of another policy: {'; '.join(wrong)}",
            "compare policy.hidden_size and policy.num_layers with the config.ini beside the file",
        )
    weights = tree_unflatten([(name, loaded[name].astype(mx.float32)) for name in tensors])
    if not all(mx.isfinite(w).all().item() for _, w in named(weights)):
        raise UserError(f"{path} holds numbers that aren't finite", "the file is damaged")
    return weights


def _writing(write: Any, path: Path, *data: Any) -> None:
    """Call one of MLX's writers, whose failures are RuntimeErrors without an errno."""
    try:
        write(str(path), *data)
    except RuntimeError as error:
        raise OSError(0, str(error)) from None
