"""Read and write safetensors files with a checksum. Reading validates every byte.

    8 bytes     header length n, little-endian
    n bytes     JSON: name -> {dtype, shape, data_offsets}, and "__metadata__": texts
    the rest    tensors, without gaps

Files written here contain ``crc32`` in their metadata, the CRC-32 of all other contents. It detects
accidental damage, not deliberate changes. Files without it are also accepted. CRC-32 was chosen for
its speed (3 GB/s, cryptographic digests 1 GB/s), because training waits for its checkpoints.
"""

import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import mlx.core as mx
import numpy as np

from puffer_mlx.config.memory_needs import refuse_file
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import open_file, publish
from puffer_mlx.system.json_text import is_count

CRC = "crc32"
DIMENSIONS_MOST = 32  # NumPy allows 64; no weight needs this many
HEADER_MOST = 100_000_000  # bytes, limit of the format
DTYPES = {  # name in the format -> (MLX dtype, NumPy dtype with the same bytes)
    "BOOL": (mx.bool_, "?"),
    "U8": (mx.uint8, "u1"),
    "I8": (mx.int8, "i1"),
    "U16": (mx.uint16, "<u2"),
    "I16": (mx.int16, "<i2"),
    "U32": (mx.uint32, "<u4"),
    "I32": (mx.int32, "<i4"),
    "U64": (mx.uint64, "<u8"),
    "I64": (mx.int64, "<i8"),
    "F16": (mx.float16, "<f2"),
    "BF16": (mx.bfloat16, "<u2"),
    "F32": (mx.float32, "<f4"),
    "C64": (mx.complex64, "<c8"),
}
NAMES = {dtype: name for name, (dtype, _) in DTYPES.items()}


class TensorEntry(NamedTuple):
    """Header entry of a tensor. Offsets are in bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """Header of a file.

    Args:
        tensors: Entries by name, in the order of the file.
        metadata: Texts by key.
        length: Number of bytes before the first tensor.
    """

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    length: int


def write(path: Path, tensors: Mapping[str, mx.array], metadata: Mapping[str, str]) -> None:
    """Write tensors, sorted by name, with metadata and a checksum. The file is published by rename.

    Pass evaluated tensors: evaluating lazy ones waits for all evaluations in progress, which may
    never end (for example while they wait for another process).

    Raises:
        UserError: If the file can't be written.
    """
    parts = {name: _bytes(tensors[name]) for name in sorted(tensors)}
    kinds = {name: (NAMES[tensors[name].dtype], tensors[name].shape) for name in parts}
    crc = _crc(kinds, metadata)
    end = 0
    header: dict[str, Any] = {}
    for name, part in parts.items():
        crc = zlib.crc32(part.data, crc)
        dtype, shape = kinds[name]
        offsets = [end, end := end + part.nbytes]
        header[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": offsets}
    text = json.dumps({"__metadata__": {**metadata, CRC: f"{crc:08x}"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with publish(path) as temporary:
        length = len(text).to_bytes(8, "little")
        _write(temporary, [length, text, *(part.data for part in parts.values())])


def _write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)


def read(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Return the tensors of a file by name, and its metadata.

    Raises:
        UserError: If the file isn't safetensors, is damaged, or doesn't fit into memory.
        OSError: If the file can't be read.
    """
    with open_file(path) as file:
        header = _header(path, file)
        size = max((entry.end for entry in header.tensors.values()), default=0)
        refuse_file(path, size)
        data = file.read(size)
    if len(data) != size:
        raise _damaged(path, "it ends early")
    views = {
        name: np.frombuffer(data, DTYPES[e.dtype][1], math.prod(e.shape), e.begin)
        for name, e in header.tensors.items()
    }
    metadata = {key: text for key, text in header.metadata.items() if key != CRC}
    if CRC in header.metadata:
        crc = _crc({name: e[:2] for name, e in header.tensors.items()}, metadata)
        for name in sorted(views):
            crc = zlib.crc32(views[name].data, crc)
        if header.metadata[CRC] != f"{crc:08x}":
            raise _damaged(path, "its checksum differs, so something in it was changed")
    return {name: _array(views[name], e) for name, e in header.tensors.items()}, metadata


def read_header(path: Path) -> Header:
    """Return the header of a file without comparing the checksum.

    Raises:
        UserError: If the file isn't safetensors or its header is damaged.
        OSError: If the file can't be read.
    """
    with open_file(path) as file:
        return _header(path, file)


def _header(path: Path, file: BinaryIO) -> Header:
    """Read a header, and check that tensors fill the file without gaps or overlaps."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 10 or not 2 <= length <= min(size - 8, HEADER_MOST):
        raise _damaged(path, f"{size} bytes don't begin with a header")
    try:
        entries = json.loads(file.read(length).decode())
    except (ValueError, RecursionError):
        raise _damaged(path, "its header isn't JSON") from None
    if not isinstance(entries, dict):
        raise _damaged(path, "its header is no dictionary")
    metadata = entries.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata  # MLX writes null for no metadata
    texts = isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    if not texts:
        raise _damaged(path, "its metadata aren't texts")
    tensors = {name: _entry(path, name, entry) for name, entry in entries.items()}
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise _damaged(path, f"{name!r} doesn't begin where the tensor before it ends")
        end = entry.end
    if 8 + length + end != size:
        raise _damaged(path, f"it has {size} bytes, and its header tells of {8 + length + end}")
    return Header(tensors, metadata, 8 + length)


def _entry(path: Path, name: str, entry: Any) -> TensorEntry:
    """Return the checked header entry of one tensor."""
    keys = ("dtype", "shape", "data_offsets")
    dtype, shape, offsets = map(entry.get, keys) if isinstance(entry, dict) else (None,) * 3
    if not (_counts(shape) and _counts(offsets) and len(offsets) == 2):
        raise _damaged(path, f"what it says of {name!r} makes no sense")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _damaged(path, f"{name!r} is of type {dtype!r}, expected one of {', '.join(DTYPES)}")
    size = np.dtype(DTYPES[dtype][1]).itemsize
    if len(shape) > DIMENSIONS_MOST:
        raise _damaged(path, f"{name!r} has {len(shape)} dimensions")
    if max(shape, default=0) >= 2**31 or offsets[1] - offsets[0] != size * math.prod(shape):
        raise _damaged(path, f"{name!r} of shape {shape} has {offsets[1] - offsets[0]} bytes")
    return TensorEntry(dtype, tuple(shape), *offsets)


def _counts(value: Any) -> TypeGuard[list[int]]:
    """Return True for a list of non-negative integers."""
    return isinstance(value, list) and all(map(is_count, value))


def _crc(kinds: Mapping[str, Any], metadata: Mapping[str, str]) -> int:
    """Return the checksum of the header. The caller adds the tensors' bytes, sorted by name."""
    text = json.dumps([sorted(metadata.items()), sorted(kinds.items())])
    return zlib.crc32(text.encode())


def _bytes(array: mx.array) -> np.ndarray:
    """Return an array in row-major order, without a copy if possible."""
    array = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.ascontiguousarray(np.asarray(array))


def _array(view: np.ndarray, entry: TensorEntry) -> mx.array:
    """Return an aligned copy of a tensor; tensors in files aren't aligned as MLX requires."""
    array = mx.array(np.require(view, requirements="A").reshape(entry.shape))
    return array.view(mx.bfloat16) if entry.dtype == "BF16" else array


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} can't be read as safetensors: {what}", "the file is damaged")
