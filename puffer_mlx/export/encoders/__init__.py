"""Encoders in other programs: PyTorch, ONNX and Stable-Baselines3. A file each.

A file is named as the encoder's in ``policy/encoders`` and has ``FORMS`` by class. An encoder
without a file is exported as safetensors. Only ``torch_images.py`` imports torch when it is
imported. Tensors are named without ``encoder.``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from puffer_mlx.config.components import encoder_files
from puffer_mlx.errors import UserError
from puffer_mlx.export.networks import find_forms
from puffer_mlx.policy.encoders import Weights


def refuse_bias(name: str, bias: mx.array) -> None:
    """Refuse to leave out a bias that isn't 0.

    Args:
        name: tensor name for the message.
        bias: bias values.

    Raises:
        UserError: If a value isn't 0.
    """
    largest = mx.max(mx.abs(bias)).item()
    if largest:
        raise UserError(
            f"{name} is not 0 (largest {largest:.3g}), and the native dialect has no biases",
            "keep the torch dialect; its files are --to torch, safetensors and onnx",
        )


def unchanged(array: Any) -> Any:
    """Return the array."""
    return array


@dataclass(frozen=True)
class EncoderClass:
    """The class of PufferLib 4.0's torch backend.

    Args:
        module: (encoder) -> the class's module, with initial weights.
        key: (tensor's name) -> its key, without ``encoder.``.
        mark: a key that no other encoder's class has, without ``encoder.``.
        to_torch: (weight, a NumPy array) -> the array in the class.
        from_torch: the inverse.
    """

    module: Callable[[Any], Any]
    key: Callable[[str], str]
    mark: str
    to_torch: Callable[[Any], Any] = unchanged
    from_torch: Callable[[Any], Any] = unchanged


@dataclass(frozen=True)
class EncoderForms:
    """Forms of an encoder in other programs. None means that a program lacks the encoder.

    Args:
        onnx: (graph, encoder, observations) -> features: adds nodes to an ``onnx_graph.Graph``.
        torch: the class of PufferLib 4.0.
        puffer3: (tensor's name) -> its key in PufferLib 3.0's wrapper.
        sb3: (tensor's name) -> its key in a sequence of Stable-Baselines3's policy.
        mark: start of tensor names that only this encoder has; empty for the default encoder.
        to_layout: (encoder, weights, dialect) -> both in another dialect; None for an encoder
            that all dialects share.
    """

    onnx: Callable[[Any, Any, str], str] | None = None
    torch: EncoderClass | None = None
    puffer3: Callable[[str], str] | None = None
    sb3: Callable[[str], str] | None = None
    mark: str = ""
    to_layout: Callable[[Any, Weights, str], tuple[Any, Weights]] | None = None


NONE = EncoderForms()


@cache
def export_forms() -> dict[type, EncoderForms]:
    """Return the forms of every encoder that has a file here, by the encoder's class."""
    found = find_forms(__name__, [file.stem for file in encoder_files().values()])
    return {cls: forms for by_class in found.values() for cls, forms in by_class.items()}


def export_forms_of(encoder: Any) -> EncoderForms:
    """Return the forms of an encoder. A custom class has no forms."""
    return export_forms().get(type(encoder), NONE)
