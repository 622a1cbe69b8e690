"""Upstream's flat file of weights, ``.bin``.

It is headerless little-endian float32, every tensor row-major, in the order of the
weights' dictionary: encoder, decoder (the value is its last row), logstd of continuous actions,
network. It holds the policy that upstream's CUDA backend trains, tensor for tensor.

Upstream keeps all tensors in one array, where each begins at a multiple of 16 bytes: 8 numbers of
its bf16 build (the default), 4 of its ``--float`` build. PufferLib, 4.0 and 5.0, writes as many
numbers of that array as the policy has. With room between tensors (after the logstd of 3 actions,
say) the last numbers are therefore missing from its files. Other programs write the whole array,
and 5.0's player of CPUs takes what lacks up to 7 numbers of it: so do we. A hidden size divisible
by 8 and discrete actions leave no room, and all these forms are the same.
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
from puffer_mlx.policy.encoders.catalog import forms_of as encoder_forms
from puffer_mlx.policy.networks.catalog import FORMS, forms_of, names_of
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system import program
from puffer_mlx.system.files import open_file, publish
from puffer_mlx.trees import named

Weights = Any

BF16, FLOAT = 8, 4  # numbers that upstream's builds align tensors to
SHORT_HINT = (  # of a file that lacks numbers
    "--lossy writes it all the same, as PufferLib itself; --bin-whole writes all of it, which only"
    " 5.0's player of CPUs reads; --to torch and --to safetensors keep everything"
)
ZIP = b"PK\x03\x04"  # how the files of torch.save begin
_PARTS = ("encoder", "decoder.actions", "decoder.value")
_BEFORE = [f"{part}.{name}" for part in _PARTS for name in ("weight", "bias")]
PUFFER3 = [  # the tensors of 3.0's file, for each network that its wrapper takes
    [*_BEFORE, *(f"network.{name}" for name in forms.puffer3(1))]
    for forms in FORMS.values()
    if forms.puffer3
]


class Flat(NamedTuple):
    """Where the tensors of a policy are in a flat file.

    Args:
        places: first number and the one after the last, of each tensor in the array.
        length: numbers in the file, from the array's beginning.
    """

    places: tuple[tuple[int, int], ...]
    length: int

    @property
    def end(self) -> int:
        """Numbers of the whole array."""
        return self.places[-1][1]

    @property
    def missing(self) -> int:
        """Numbers of the policy that the file lacks, at its end."""
        return max(0, self.end - self.length)


def flat_form(sizes: Sequence[int], alignment: int = BF16, whole: bool = False) -> Flat:
    """The form of upstream's file for tensors of these sizes.

    Args:
        sizes: numbers of each tensor.
        alignment: tensors begin at multiples of it: ``BF16`` or ``FLOAT``.
        whole: the whole array, which PufferLib itself doesn't write.
    """
    places, end = [], 0
    for size in sizes:
        start = -(-end // alignment) * alignment
        end = start + size
        places.append((start, end))
    return Flat(tuple(places), end if whole else sum(sizes))


def cut_or_padded(sizes: Sequence[int], length: int) -> Flat:
    """The form of a file of ``length`` numbers, if it is one that PufferLib 5.0 reads, too.

    A bf16 build's array that lacks up to 7 numbers, or has some more, since its last tensor fills
    a multiple of 8, too. If it is none, the whole array.
    """
    whole = flat_form(sizes, BF16, whole=True)
    least, most = max(sum(sizes), whole.end - (BF16 - 1)), -(-whole.end // BF16) * BF16
    return Flat(whole.places, length) if least <= length <= most else whole


def part_fault(policy: Policy) -> str | None:
    """The part of a policy that isn't one of upstream's native policy; None if all are."""
    if policy.separate_value:
        return "values with a network of their own (policy.separate_value): the flat file has none"
    for part, fits, wanted in (
        (
            policy.encoder,
            encoder_forms(policy.encoder).flat,
            "a linear encoder without bias (policy.dialect native)",
        ),
        (
            policy.decoder,
            type(policy.decoder) is Fused,
            "a decoder without biases (policy.dialect native)",
        ),
        (
            policy.network,
            forms_of(policy.network).flat is not None,
            f"the network {' or '.join(names_of('flat'))}",
        ),
    ):
        if not fits:
            return f"{type(part).__name__}: the flat file holds {wanted}"
    return None


def bin_fault(policy: Policy, alignment: int = BF16) -> str | None:
    """Why upstream's flat file can't hold this policy; None if it can, without a loss."""
    if fault := part_fault(policy):
        return fault
    tensors = named(policy.init(mx.random.key(0)))  # nothing is computed: only shapes are asked for
    form = flat_form([w.size for _, w in tensors], alignment)
    return _loss(form, [name for name, _ in tensors]) if form.missing else None


def _loss(form: Flat, names: list[str]) -> str:
    """What a file lacks, in words."""
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
    """Write weights as upstream's flat file.

    Args:
        policy: what the weights are of.
        weights: its weights.
        path: the file.
        alignment: which build of upstream reads it: ``BF16`` or ``FLOAT``.
        whole: write the whole array. PufferLib 4.0 refuses that, 5.0's player of CPUs reads it, and
            5.0's CUDA reads as much of it as of any file.
        lossy: write a file that lacks numbers, as PufferLib's are. Its CUDA goes on with numbers of
            its own, 5.0's player of CPUs with zeros.

    Raises:
        UserError: the file can't hold the policy, or not all of it; or it can't be written.
    """
    if fault := part_fault(policy):
        raise UserError(fault, "export it with --to torch, safetensors or onnx")
    tensors = named(weights)
    form = flat_form([w.size for _, w in tensors], alignment, whole)
    if form.missing and not lossy:
        raise UserError(_loss(form, [name for name, _ in tensors]), SHORT_HINT)
    array = np.zeros(form.end, "<f4")
    for (start, stop), (_, w) in zip(form.places, tensors, strict=True):
        array[start:stop] = np.asarray(w).ravel()
    with publish(path) as temporary:
        temporary.write_bytes(array[: form.length].tobytes())


def read_bin(path: Path, like: Weights, alignment: int = BF16) -> Weights:
    """Weights like others from a flat file, whatever its name; a missing one is an OSError.

    Warns if the file is one of those of PufferLib that lack numbers; they become 0.

    Args:
        path: the file.
        like: weights of the policy they're for; gives names, order and shapes.
        alignment: the build of upstream that wrote it, where its size can't tell.

    Raises:
        UserError: the file is damaged, or of another policy.
    """
    tensors = named(like)
    with open_file(path) as file:
        size, head = os.fstat(file.fileno()).st_size, file.read(len(ZIP))
    if head == ZIP:
        raise UserError(
            f"{path} is a file of torch.save, whatever its name says",
            f"import it: {program.command('import')} {path} ENV",
        )
    names = [name for name, _ in tensors]
    if not (names in PUFFER3 or _native(names)):
        raise UserError(
            f"{path}: a flat file holds a policy of the native dialect with"
            f" {' or '.join(names_of('flat'))},"
            f" and this one has {', '.join(names)}",
            "load a .safetensors file, or choose another policy.dialect and torch.network",
        )
    form = _form_of(path, size, tensors, alignment)  # first: a file of any size may be named
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
    """Whether these are the weights of upstream's native policy."""
    first = ["encoder.weight", "decoder.weight"]
    if "decoder.logstd" in names:
        first.append("decoder.logstd")
    others = [name.removeprefix("network.") for name in names[len(first) :]]
    return names[: len(first)] == first and any(
        others == list(forms.flat(1, forms.layers(others)))
        for forms in FORMS.values()
        if forms.flat and forms.layers
    )


def _form_of(path: Path, size: int, tensors: list, alignment: int) -> Flat:
    """Which form a file of so many bytes has."""
    sizes = [w.size for _, w in tensors]
    if [name for name, _ in tensors] in PUFFER3:
        alignment = 1  # 3.0 put one tensor after the other
    forms = [flat_form(sizes, alignment)]
    if alignment > 1:
        forms += [flat_form(sizes, to, whole=True) for to in (alignment, BF16, FLOAT)]
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
