"""Read and write safetensors files with a checksum.

Format:

    8 bytes     header length n, little-endian
    n bytes     JSON: name -> {dtype, shape, data_offsets}, and "__metadata__": texts
    the rest    tensors, without gaps

Files written here contain ``crc32`` in their metadata, the CRC-32 of all other contents. It detects
accidental damage, not deliberate changes. Files without a checksum are accepted, too. CRC-32 was
chosen for its speed (3 GB/s; cryptographic digests 1 GB/s), because training waits for checkpoints.
"""

import json
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import mlx.core as mx
import numpy as np

from puffer_mlx.config.memory_needs import refuse_large_file
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import open_file, publish
from puffer_mlx.system.json_text import is_count

CRC = "crc32"
MAX_DIMENSIONS = 32  # NumPy allows 64; no weight needs this many
MIN_FILE_BYTES = 10  # the header's length and an empty dictionary
MAX_HEADER_BYTES = 100_000_000  # limit of the format
MAX_DIMENSION = 2**31 - 1  # MLX stores dimensions as int32
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
DTYPE_NAMES = {dtype: name for name, (dtype, _) in DTYPES.items()}


class TensorEntry(NamedTuple):
    """Entry of a tensor in a safetensors header: type, shape and position.

    ``begin`` and ``end`` are in bytes from the end of the header.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """Header of a safetensors file: its tensors' types and positions, and its metadata.

    Args:
        tensors: Entries by name, in the order of the file.
        metadata: Texts by key.
        length: Number of bytes before the first tensor.
    """

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    length: int


def write_tensors(path: Path, tensors: Mapping[str, mx.array], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata to a safetensors file with a checksum, completely or not at all.

    Args:
        path: File to write.
        tensors: Evaluated arrays by name. (Evaluating lazy arrays here would wait for all
            evaluations in progress, which may wait for another process.)
        metadata: Texts by key.

    Raises:
        UserError: The file can't be written.
    """
    arrays = {name: _bytes(tensors[name]) for name in sorted(tensors)}
    kinds = {name: (DTYPE_NAMES[tensors[name].dtype], tensors[name].shape) for name in arrays}
    crc = _header_crc(kinds, metadata)
    begin = 0
    header: dict[str, Any] = {}
    for name, array in arrays.items():
        crc = zlib.crc32(array.data, crc)
        dtype, shape = kinds[name]
        end = begin + array.nbytes
        header[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps({"__metadata__": {**metadata, CRC: f"{crc:08x}"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    length = len(text).to_bytes(8, "little")
    with publish(path) as temporary, temporary.open("wb") as file:
        file.writelines([length, text, *(array.data for array in arrays.values())])


def read_tensors(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Read and validate a safetensors file. Returns its tensors by name, and its metadata.

    Raises:
        UserError: The file isn't safetensors, is damaged, or doesn't fit into memory.
        OSError: The file can't be read.
    """
    with open_file(path) as file:
        header = _header(path, file)
        size = max((entry.end for entry in header.tensors.values()), default=0)
        refuse_large_file(path, size)
        data = file.read(size)
    if len(data) != size:
        raise _damaged(path, "it ends early")
    views = {
        name: np.frombuffer(data, DTYPES[e.dtype][1], math.prod(e.shape), e.begin)
        for name, e in header.tensors.items()
    }
    metadata = {key: text for key, text in header.metadata.items() if key != CRC}
    if CRC in header.metadata:
        kinds = {name: (e.dtype, e.shape) for name, e in header.tensors.items()}
        crc = _header_crc(kinds, metadata)
        for name in sorted(views):
            crc = zlib.crc32(views[name].data, crc)
        if header.metadata[CRC] != f"{crc:08x}":
            raise _damaged(path, "its checksum is wrong, so its contents have changed")
    return {name: _array(views[name], e) for name, e in header.tensors.items()}, metadata


def read_tensor_header(path: Path) -> Header:
    """Read the header of a safetensors file, without reading tensors or checking the checksum.

    Raises:
        UserError: The file isn't safetensors or its header is damaged.
        OSError: The file can't be read.
    """
    with open_file(path) as file:
        return _header(path, file)


def _header(path: Path, file: BinaryIO) -> Header:
    """Read a safetensors file's header, and check that tensors fill the file. Returns it."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < MIN_FILE_BYTES or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise _damaged(path, f"{size} bytes don't begin with a header")
    try:
        entries = json.loads(file.read(length).decode())
    except (ValueError, RecursionError):
        raise _damaged(path, "its header isn't JSON") from None
    if not isinstance(entries, dict):
        raise _damaged(path, "its header isn't a dictionary")
    metadata = entries.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata  # MLX writes null for no metadata
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its metadata isn't text")
    tensors = {name: _entry(path, name, entry) for name, entry in entries.items()}
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise _damaged(path, f"{name!r} doesn't begin where the previous tensor ends")
        end = entry.end
    if 8 + length + end != size:
        raise _damaged(path, f"it has {size} bytes, but its header says {8 + length + end}")
    return Header(tensors, metadata, 8 + length)


def _entry(path: Path, name: str, entry: Any) -> TensorEntry:
    """Check a tensor's entry in the header of a safetensors file, and return the entry."""
    fields = entry if isinstance(entry, dict) else {}
    dtype = fields.get("dtype")
    shape = fields.get("shape")
    offsets = fields.get("data_offsets")
    if not (_is_count_list(shape) and _is_count_list(offsets) and len(offsets) == 2):
        raise _damaged(path, f"the header entry of {name!r} is invalid")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _damaged(path, f"{name!r} is of type {dtype!r}, expected one of {', '.join(DTYPES)}")
    size = np.dtype(DTYPES[dtype][1]).itemsize
    if len(shape) > MAX_DIMENSIONS:
        raise _damaged(path, f"{name!r} has {len(shape)} dimensions")
    if max(shape, default=0) > MAX_DIMENSION or offsets[1] - offsets[0] != size * math.prod(shape):
        raise _damaged(path, f"{name!r} of shape {shape} has {offsets[1] - offsets[0]} bytes")
    return TensorEntry(dtype, tuple(shape), *offsets)


def _is_count_list(value: Any) -> TypeGuard[list[int]]:
    """Return True if a value is a list of non-negative integers."""
    return isinstance(value, list) and all(map(is_count, value))


def _header_crc(kinds: Mapping[str, Any], metadata: Mapping[str, str]) -> int:
    """Return the CRC-32 checksum of a tensor file's header, to be continued with the tensors.

    Args:
        kinds: (dtype, shape) of each tensor by name.
        metadata: Texts by key, without the checksum.
    """
    text = json.dumps([sorted(metadata.items()), sorted(kinds.items())])
    return zlib.crc32(text.encode())


def _bytes(array: mx.array) -> np.ndarray:
    """Return an MLX array as a row-major NumPy array, without a copy if possible."""
    array = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.ascontiguousarray(np.asarray(array))


def _array(view: np.ndarray, entry: TensorEntry) -> mx.array:
    """Return a tensor that was read from a file as an MLX array. Unaligned bytes are copied."""
    aligned = np.require(view, requirements=["ALIGNED"])
    array = mx.array(aligned.reshape(entry.shape))
    return array.view(mx.bfloat16) if entry.dtype == "BF16" else array


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} can't be read as safetensors: {reason}", "the file is damaged")
