"""What the native dialect lacks."""

import mlx.core as mx

from puffer_mlx.errors import UserError


def refuse_bias(name: str, bias: mx.array) -> None:
    """Refuse to leave out a bias that isn't 0.

    Args:
        name: the tensor's, for the message.
        bias: its numbers.

    Raises:
        UserError: one isn't 0.
    """
    largest = mx.max(mx.abs(bias)).item()
    if largest:
        raise UserError(
            f"{name} is not 0 (largest {largest:.3g}), and the native dialect has no biases",
            "keep the torch dialect; its files are --to torch, safetensors and onnx",
        )
