"""Read and write PufferLib's flat weight file, ``.bin``.

The file has no header. It contains the tensors as little-endian float32 values in row-major order:
encoder, decoder (its last row computes the value), logstd for continuous actions, network.

PufferLib stores all tensors in one array and aligns each to 16 bytes: 8 values in the bf16 build
(the default), 4 in the ``--float`` build. PufferLib 4.0 and 5.0 write only as many values as the
policy has weights. If there is padding between tensors (for example after the logstd of 3 actions),
the last weights are missing in the file. Other programs write the entire array. PufferLib 5.0's CPU
player accepts an array that is up to 7 values short, and so does this module. Without padding (a
hidden size divisible by 8 and discrete actions) all these layouts are equal.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path

from puffer_mlx.errors import UserError
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.encoders.catalog import encoder_facts
from puffer_mlx.policy.networks.catalog import NETWORK_FACTS, network_facts, networks_with
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system import program
from puffer_mlx.system.files import open_file, publish
from puffer_mlx.trees import named_arrays

Weights = Any

BF16, FLOAT = 8, 4  # alignments of tensors in PufferLib's bf16 and --float builds, in values
SHORT_HINT = (  # for a file with missing values
    "--lossy writes it nevertheless, as PufferLib does; --bin-whole writes all values, which only"
    " 5.0's CPU player reads; --to torch and --to safetensors keep everything"
)
ZIP = b"PK\x03\x04"  # first bytes of torch.save files
_COMPONENTS = ("encoder", "decoder.actions", "decoder.value")
_NAMES_BEFORE_NETWORK = [
    f"{component}.{name}" for component in _COMPONENTS for name in ("weight", "bias")
]
PUFFER3_NAMES = [  # lists of tensor names in PufferLib 3.0's file, one per network
    # The hidden size, 1 here, changes only the sizes, which aren't used.
    [*_NAMES_BEFORE_NETWORK, *(f"network.{name}" for name in facts.puffer3(1))]
    for facts in NETWORK_FACTS.values()
    if facts.puffer3
]


class FlatLayout(NamedTuple):
    """Positions of a policy's tensors in PufferLib's weight file, which is one flat array.

    Args:
        ranges: (start, stop) of each tensor in the array, in values.
        length: Number of values that the file contains, from the start of the array.
    """

    ranges: tuple[tuple[int, int], ...]
    length: int

    @property
    def end(self) -> int:
        """Number of values in the flat array of all tensors. The file may omit the last ones."""
        return self.ranges[-1][1]

    @property
    def missing(self) -> int:
        """Number of values at the end of the flat array of weights that the file omits."""
        return max(0, self.end - self.length)


def flat_layout(sizes: Sequence[int], alignment: int = BF16, whole: bool = False) -> FlatLayout:
    """Return the positions of tensors of given sizes in a PufferLib weight file, and its length.

    Args:
        sizes: Number of values in each tensor.
        alignment: Alignment of tensors in values, ``BF16`` or ``FLOAT``.
        whole: True to include the entire array, which PufferLib itself doesn't write.
    """
    ranges = []
    end = 0
    for size in sizes:
        start = _round_up(end, alignment)
        end = start + size
        ranges.append((start, end))
    return FlatLayout(tuple(ranges), end if whole else sum(sizes))


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def tolerant_layout(sizes: Sequence[int], length: int) -> FlatLayout:
    """Return the layout of a PufferLib weight file of a length that PufferLib 5.0 accepts.

    PufferLib 5.0 reads the array of the bf16 build even if it is up to 7 values short or padded at
    the end to a multiple of 8.

    Args:
        sizes: Number of values in each tensor.
        length: Number of values in the file. If 5.0 doesn't accept it, the layout of the entire
            array is returned.
    """
    whole = flat_layout(sizes, BF16, whole=True)
    minimum = max(sum(sizes), whole.end - (BF16 - 1))
    maximum = _round_up(whole.end, BF16)
    return FlatLayout(whole.ranges, length) if minimum <= length <= maximum else whole


def unsupported_component_reason(policy: Policy) -> str | None:
    """Return why PufferLib can't represent a policy's components, such as its encoder, or None."""
    if policy.separate_value:
        return "a separate value network (policy.separate_value): the flat file has none"
    if not encoder_facts(policy.encoder).flat:
        component: Any = policy.encoder
        expected = "a linear encoder without bias (policy.dialect native)"
    elif type(policy.decoder) is not Fused:
        component = policy.decoder
        expected = "a decoder without biases (policy.dialect native)"
    elif network_facts(policy.network).flat is None:
        component = policy.network
        expected = f"the network {' or '.join(networks_with('flat'))}"
    else:
        return None
    return f"{type(component).__name__}: the flat file holds {expected}"


def flat_unsupported_reason(policy: Policy, alignment: int = BF16) -> str | None:
    """Return why a PufferLib weight file can't contain all weights of a policy, or None if it can.

    Args:
        policy: The policy.
        alignment: Alignment of the PufferLib build that reads the file, ``BF16`` or ``FLOAT``.
    """
    if reason := unsupported_component_reason(policy):
        return reason
    tensors = named_arrays(policy.init(mx.random.key(0)))  # lazy: only shapes are used
    layout = flat_layout([w.size for _, w in tensors], alignment)
    return (
        _missing_values_message(layout, [name for name, _ in tensors]) if layout.missing else None
    )


def _missing_values_message(layout: FlatLayout, names: list[str]) -> str:
    """Return a message that names the tensors of which a PufferLib weight file lacks values."""
    ranges = zip(names, layout.ranges, strict=True)
    incomplete = [name for name, (_, stop) in ranges if stop > layout.length]
    return (
        f"PufferLib's flat file lacks the last {layout.missing} of {layout.end} numbers,"
        f" which are {', '.join(incomplete)}'s"
    )


def save_bin(
    policy: Policy,
    weights: Weights,
    path: Path,
    alignment: int = BF16,
    *,
    whole: bool = False,
    lossy: bool = False,
) -> None:
    """Write a policy's weights to a weight file of PufferLib, which is one flat array.

    Args:
        policy: Policy that uses the weights.
        weights: Tree of weights.
        path: File to write.
        alignment: Alignment of the PufferLib build that reads the file, ``BF16`` or ``FLOAT``.
        whole: True to write the entire array. PufferLib 4.0 rejects such a file. 5.0's CPU player
            reads all of it, 5.0's CUDA backend only the first values.
        lossy: True to write a file even if values are missing, as PufferLib does. For missing
            values, its CUDA backend keeps random initial values and 5.0's CPU player uses zeros.

    Raises:
        UserError: The file can't contain the policy, would lack values, or can't be written.
    """
    if reason := unsupported_component_reason(policy):
        raise UserError(reason, "export it with --to torch, safetensors or onnx")
    tensors = named_arrays(weights)
    layout = flat_layout([w.size for _, w in tensors], alignment, whole)
    if layout.missing and not lossy:
        raise UserError(_missing_values_message(layout, [name for name, _ in tensors]), SHORT_HINT)
    array = np.zeros(layout.end, "<f4")
    for (start, stop), (_, w) in zip(layout.ranges, tensors, strict=True):
        array[start:stop] = np.asarray(w).ravel()
    with publish(path) as temporary:
        temporary.write_bytes(array[: layout.length].tobytes())


def read_bin(path: Path, template: Weights, alignment: int = BF16) -> Weights:
    """Read and return a policy's weights from a weight file of PufferLib, which is one flat array.

    Warns if PufferLib has left out the last values; these become 0.

    Args:
        path: File to read, with any suffix.
        template: Weights of the same policy, which give names, order and shapes.
        alignment: Alignment of the PufferLib build that wrote the file, used if the file's size
            fits both.

    Raises:
        UserError: The file is damaged or belongs to another policy.
        OSError: The file is missing or can't be read.
    """
    tensors = named_arrays(template)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(len(ZIP))
    if head == ZIP:
        raise UserError(
            f"{path} was written by torch.save, despite its name",
            f"import it: {program.command('import')} {path} ENV",
        )
    names = [name for name, _ in tensors]
    if not (names in PUFFER3_NAMES or _are_native_names(names)):
        raise UserError(
            f"{path}: a flat file holds a policy of the native dialect with"
            f" {' or '.join(networks_with('flat'))},"
            f" but this one has {', '.join(names)}",
            "load a .safetensors file, or choose another policy.dialect and torch.network",
        )
    layout = _detect_layout(
        path, size, tensors, alignment
    )  # before reading a file that may be huge
    if layout.missing:
        warnings.warn(
            f"{path}: {_missing_values_message(layout, names)}; they are 0 now", stacklevel=3
        )
    array = np.zeros(max(layout.end, layout.length), "<f4")
    with open_file(path) as file:
        data = file.read(size)
    array[: layout.length] = np.frombuffer(data, "<f4")
    if not np.isfinite(array).all():
        raise UserError(f"{path} contains NaN or infinite values", "the file is damaged")
    ranges = dict(zip(names, layout.ranges, strict=True))
    return tree_map_with_path(
        lambda name, w: mx.array(array[slice(*ranges[name])].reshape(w.shape)), template
    )


def _are_native_names(names: list[str]) -> bool:
    """Return True if the names of a policy's weights are those of PufferLib's native policy."""
    expected = ["encoder.weight", "decoder.weight"]
    if "decoder.logstd" in names:
        expected.append("decoder.logstd")
    if names[: len(expected)] != expected:
        return False
    network_names = [name.removeprefix("network.") for name in names[len(expected) :]]
    return any(
        network_names == list(facts.flat(1, facts.layers(network_names)))  # of hidden size 1
        for facts in NETWORK_FACTS.values()
        if facts.flat and facts.layers
    )


def _detect_layout(path: Path, size: int, tensors: list, alignment: int) -> FlatLayout:
    """Return the positions of tensors in a PufferLib weight file, detected from the file's size.

    Args:
        path: File, for messages.
        size: Size of the file in bytes.
        tensors: (name, array) of the policy's weights.
        alignment: Alignment to prefer if the size fits several.

    Raises:
        UserError: No layout has this size.
    """
    sizes = [w.size for _, w in tensors]
    if [name for name, _ in tensors] in PUFFER3_NAMES:
        alignment = 1  # 3.0 doesn't align tensors
    layouts = [flat_layout(sizes, alignment)]
    if alignment > 1:
        layouts += [flat_layout(sizes, each, whole=True) for each in (alignment, BF16, FLOAT)]
        layouts.append(tolerant_layout(sizes, size // 4))
    for layout in layouts:
        if size == 4 * layout.length:
            return layout
    lengths = dict.fromkeys(layout.length for layout in layouts)
    expected = " or ".join(str(4 * n) for n in lengths)
    shapes = ", ".join(f"{name} {w.shape}" for name, w in tensors)
    raise UserError(
        f"{path} has {size} bytes, expected {expected}: float32 {shapes}",
        "the file is truncated or of another policy;"
        " compare policy.hidden_size and policy.num_layers",
    )
