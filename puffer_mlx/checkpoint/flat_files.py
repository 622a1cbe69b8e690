"""Read and write PufferLib's flat weight file, ``.bin``.

The file has no header. It contains little-endian float32 values, each tensor row-major, in the
order of the weights' dictionary: encoder, decoder (the value is the last row), logstd for
continuous actions, network.

PufferLib stores all tensors in one array and aligns each to 16 bytes: 8 values in the bf16 build
(the default), 4 in the ``--float`` build. PufferLib 4.0 and 5.0 write only as many values as the
policy has. So padding between tensors (for example after the logstd of 3 actions) cuts off the last
values. Other programs write the entire array. PufferLib 5.0's CPU player accepts an array that is
up to 7 values short, and so does this module. Without padding (a hidden size divisible by 8 and
discrete actions) all these layouts are equal.
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
from puffer_mlx.trees import named

Weights = Any

BF16, FLOAT = 8, 4  # values to which PufferLib's builds align tensors
SHORT_HINT = (  # for a file with missing values
    "--lossy writes it all the same, as PufferLib itself; --bin-whole writes all of it, which only"
    " 5.0's player of CPUs reads; --to torch and --to safetensors keep everything"
)
ZIP = b"PK\x03\x04"  # first bytes of torch.save files
_PARTS = ("encoder", "decoder.actions", "decoder.value")
_BEFORE = [f"{part}.{name}" for part in _PARTS for name in ("weight", "bias")]
PUFFER3 = [  # tensors in 3.0's file, for each network of its wrapper
    [*_BEFORE, *(f"network.{name}" for name in forms.puffer3(1))]
    for forms in NETWORK_FACTS.values()
    if forms.puffer3
]


class FlatLayout(NamedTuple):
    """Layout of a policy's tensors in a flat file.

    Args:
        places: (start, stop) of each tensor in the array, in values.
        length: Number of values in the file, counted from the start of the array.
    """

    places: tuple[tuple[int, int], ...]
    length: int

    @property
    def end(self) -> int:
        """Number of values in the entire array."""
        return self.places[-1][1]

    @property
    def missing(self) -> int:
        """Number of policy values missing at the end of the file."""
        return max(0, self.end - self.length)


def flat_layout(sizes: Sequence[int], alignment: int = BF16, whole: bool = False) -> FlatLayout:
    """Return the layout of PufferLib's file for tensors of these sizes.

    Args:
        sizes: Number of values in each tensor.
        alignment: Alignment of tensors in values, ``BF16`` or ``FLOAT``.
        whole: True to include the entire array, which PufferLib itself doesn't write.
    """
    places = []
    end = 0
    for size in sizes:
        start = -(-end // alignment) * alignment
        end = start + size
        places.append((start, end))
    return FlatLayout(tuple(places), end if whole else sum(sizes))


def cut_or_padded(sizes: Sequence[int], length: int) -> FlatLayout:
    """Return the layout of a file of ``length`` values that PufferLib 5.0 also reads.

    Such a file is the array of the bf16 build, up to 7 values short or padded at the end to a
    multiple of 8. For any other length, the layout of the entire array is returned.
    """
    whole = flat_layout(sizes, BF16, whole=True)
    least, most = max(sum(sizes), whole.end - (BF16 - 1)), -(-whole.end // BF16) * BF16
    return FlatLayout(whole.places, length) if least <= length <= most else whole


def unsupported_part(policy: Policy) -> str | None:
    """Return the reason if a policy part has no place in PufferLib's native policy, or None."""
    if policy.separate_value:
        return "values with a network of their own (policy.separate_value): the flat file has none"
    if not encoder_facts(policy.encoder).flat:
        part, expected = policy.encoder, "a linear encoder without bias (policy.dialect native)"
    elif type(policy.decoder) is not Fused:
        part, expected = policy.decoder, "a decoder without biases (policy.dialect native)"
    elif network_facts(policy.network).flat is None:
        part, expected = policy.network, f"the network {' or '.join(networks_with('flat'))}"
    else:
        return None
    return f"{type(part).__name__}: the flat file holds {expected}"


def flat_unsupported_reason(policy: Policy, alignment: int = BF16) -> str | None:
    """Return the reason why PufferLib's flat file can't hold all of this policy, or None."""
    if reason := unsupported_part(policy):
        return reason
    tensors = named(policy.init(mx.random.key(0)))  # lazy: only shapes are used
    form = flat_layout([w.size for _, w in tensors], alignment)
    return _loss(form, [name for name, _ in tensors]) if form.missing else None


def _loss(form: FlatLayout, names: list[str]) -> str:
    """Return a message that names the missing values."""
    places = zip(names, form.places, strict=True)
    of = [name for name, (_, stop) in places if stop > form.length]
    return (
        f"PufferLib's flat file lacks the last {form.missing} of {form.end} numbers,"
        f" which are {', '.join(of)}'s"
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
    """Write weights as PufferLib's flat file.

    Args:
        policy: Policy that uses the weights.
        weights: Tree of weights.
        path: File to write.
        alignment: Alignment of the PufferLib build that reads the file, ``BF16`` or ``FLOAT``.
        whole: True to write the entire array. PufferLib 4.0 rejects such a file. 5.0's CPU player
            reads all of it, 5.0's CUDA backend only the first values.
        lossy: True to write a file with missing values, as PufferLib does. For these, its CUDA
            backend keeps its initial values and 5.0's CPU player uses zeros.

    Raises:
        UserError: If the file can't hold the policy, would lose values, or can't be written.
    """
    if reason := unsupported_part(policy):
        raise UserError(reason, "export it with --to torch, safetensors or onnx")
    tensors = named(weights)
    form = flat_layout([w.size for _, w in tensors], alignment, whole)
    if form.missing and not lossy:
        raise UserError(_loss(form, [name for name, _ in tensors]), SHORT_HINT)
    array = np.zeros(form.end, "<f4")
    for (start, stop), (_, w) in zip(form.places, tensors, strict=True):
        array[start:stop] = np.asarray(w).ravel()
    with publish(path) as temporary:
        temporary.write_bytes(array[: form.length].tobytes())


def read_bin(path: Path, like: Weights, alignment: int = BF16) -> Weights:
    """Read weights from a flat file. A missing file raises OSError.

    Warns if PufferLib left out the last values; these become 0.

    Args:
        path: File to read, with any suffix.
        like: Weights of the same policy; they give names, order and shapes.
        alignment: Alignment of the PufferLib build that wrote the file, used if its size fits both.

    Raises:
        UserError: If the file is damaged or belongs to another policy.
    """
    tensors = named(like)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(len(ZIP))
    if head == ZIP:
        raise UserError(
            f"{path} is a file of torch.save, whatever its name says",
            f"import it: {program.command('import')} {path} ENV",
        )
    names = [name for name, _ in tensors]
    if not (names in PUFFER3 or _native(names)):
        raise UserError(
            f"{path}: a flat file holds a policy of the native dialect with"
            f" {' or '.join(networks_with('flat'))},"
            f" and this one has {', '.join(names)}",
            "load a .safetensors file, or choose another policy.dialect and torch.network",
        )
    form = _detect_layout(path, size, tensors, alignment)  # before reading: the file may be huge
    if form.missing:
        warnings.warn(f"{path}: {_loss(form, names)}; they are 0 now", stacklevel=3)
    array = np.zeros(max(form.end, form.length), "<f4")
    with open_file(path) as file:
        data = file.read(size)
    array[: form.length] = np.frombuffer(data, "<f4")
    if not np.isfinite(array).all():
        raise UserError(f"{path} holds numbers that aren't finite", "the file is damaged")
    parts = dict(zip(names, form.places, strict=True))
    return tree_map_with_path(
        lambda name, w: mx.array(array[slice(*parts[name])].reshape(w.shape)), like
    )


def _native(names: list[str]) -> bool:
    """Return True if these are the weight names of PufferLib's native policy."""
    first = ["encoder.weight", "decoder.weight"]
    if "decoder.logstd" in names:
        first.append("decoder.logstd")
    others = [name.removeprefix("network.") for name in names[len(first) :]]
    return names[: len(first)] == first and any(
        others == list(forms.flat(1, forms.layers(others)))
        for forms in NETWORK_FACTS.values()
        if forms.flat and forms.layers
    )


def _detect_layout(path: Path, size: int, tensors: list, alignment: int) -> FlatLayout:
    """Return the layout of a file with ``size`` bytes."""
    sizes = [w.size for _, w in tensors]
    if [name for name, _ in tensors] in PUFFER3:
        alignment = 1  # 3.0 doesn't align tensors
    forms = [flat_layout(sizes, alignment)]
    if alignment > 1:
        forms += [flat_layout(sizes, to, whole=True) for to in (alignment, BF16, FLOAT)]
        forms.append(cut_or_padded(sizes, size // 4))
    for form in forms:
        if size == 4 * form.length:
            return form
    expected = " or ".join(str(4 * n) for n in dict.fromkeys(form.length for form in forms))
    shapes = ", ".join(f"{name} {w.shape}" for name, w in tensors)
    raise UserError(
        f"{path} has {size} bytes, expected {expected}: float32 {shapes}",
        "the file is cut off or of another policy;"
        " compare policy.hidden_size and policy.num_layers",
    )
