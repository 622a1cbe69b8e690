"""Encoders in other programs: PyTorch, ONNX and Stable-Baselines3. One file per encoder.

A file is named as the encoder's in ``policy/encoders`` and has ``EXPORTS`` by class. An encoder
without a file can only be exported as safetensors. Only ``torch_images.py`` imports torch when it
is imported. Tensors are named without ``encoder.``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from puffer_mlx.config.components import encoder_files
from puffer_mlx.errors import UserError
from puffer_mlx.export.networks import find_exports
from puffer_mlx.policy.encoders import Weights


def refuse_bias(name: str, bias: mx.array) -> None:
    """Raise an error if a bias isn't 0, because the export's weight layout has no biases.

    Args:
        name: Tensor name for the message.
        bias: Values of the bias.

    Raises:
        UserError: If a value isn't 0.
    """
    largest = mx.max(mx.abs(bias)).item()
    if largest:
        raise UserError(
            f"{name} is not 0 (largest {largest:.3g}), and the weight layout native has no biases",
            "keep the layout torch: --to torch, safetensors or onnx",
        )


def unchanged(array: Any) -> Any:
    """Return a weight unchanged, for PyTorch classes that order its dimensions as we do."""
    return array


@dataclass(frozen=True)
class Puffer4Encoder:
    """An encoder in PufferLib 4.0's torch backend: its class, keys and order of dimensions.

    Args:
        module: (encoder) -> the class's module, with initial weights.
        key: (tensor's name) -> its key, without ``encoder.``.
        unique_key: A key that no other encoder's class has, without ``encoder.``.
        to_torch: (weight, a NumPy array) -> the array in the class.
        from_torch: The inverse of ``to_torch``.
    """

    module: Callable[[Any], Any]
    key: Callable[[str], str]
    unique_key: str
    to_torch: Callable[[Any], Any] = unchanged
    from_torch: Callable[[Any], Any] = unchanged


@dataclass(frozen=True)
class EncoderExports:
    """Implementations of one of our encoders in other programs; None where a program lacks it.

    Args:
        onnx: (graph, encoder, observations) -> features. Adds nodes to an ``onnx_graph.Graph``.
        torch: The class of PufferLib 4.0.
        puffer3: (tensor's name) -> its key in PufferLib 3.0's wrapper.
        sb3: (tensor's name) -> its key in a sequence of Stable-Baselines3's policy.
        name_prefix: Start of tensor names that only this encoder has; empty for the default
            encoder.
        to_layout: (encoder, weights, layout) -> both in another weight layout; None for an encoder
            that all layouts share.
    """

    onnx: Callable[[Any, Any, str], str] | None = None
    torch: Puffer4Encoder | None = None
    puffer3: Callable[[str], str] | None = None
    sb3: Callable[[str], str] | None = None
    name_prefix: str = ""
    to_layout: Callable[[Any, Weights, str], tuple[Any, Weights]] | None = None


NO_ENCODER_EXPORTS = EncoderExports()


@cache
def encoder_exports() -> dict[type, EncoderExports]:
    """Return the implementations of all encoders in other programs, by encoder class."""
    by_file = find_exports(__name__, [file.stem for file in encoder_files().values()])
    return {cls: exports for by_class in by_file.values() for cls, exports in by_class.items()}


def encoder_exports_of(encoder: Any) -> EncoderExports:
    """Return the implementations of an encoder in other programs. A custom class lacks all."""
    return encoder_exports().get(type(encoder), NO_ENCODER_EXPORTS)
