"""`checkpoint/tensor_files.py`: what is written is read back, and anything else is one message."""

import json
import os
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from running import loaded

from puffer_mlx.checkpoint import tensor_files
from puffer_mlx.errors import UserError

TENSORS = {
    "float": mx.arange(6, dtype=mx.float32).reshape(2, 3) / 7,
    "scalar": mx.array(3.5),
    "none": mx.zeros((0, 3)),
    "columns": mx.arange(12).reshape(3, 4).T,
    "long": mx.array([2**40, -1], mx.int64),
    "half": mx.array([0.5, -0.0], mx.float16),
    "bf16": mx.array([[1.5], [-2.0], [3e38]], mx.bfloat16),
    "bytes": mx.array([1, 2, 255], mx.uint8),
    "key": mx.random.key(3),
    "yes": mx.array([True, False, True]),
    "complex": mx.array([1 + 2j]),
}
METADATA = {"puffer_mlx": "1", "text": '{"ü": "\\"}\n'}


@pytest.fixture
def path(tmp_path):
    """A file with all types of tensors."""
    made = tmp_path / "a.safetensors"
    tensor_files.write(made, TENSORS, METADATA)
    return made


def plain(array):
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(plain(found[name]), plain(array), err_msg=name)


def with_header(path, header, body=b"", length=None):
    """A file with a header of one's own."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


def parts(path):
    """The header and the tensors' bytes."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


# ---- whole files ---------------------------------------------------------------------------------


def test_what_is_written_is_read(path):
    found, metadata = tensor_files.read(path)
    check_equal(found, TENSORS)
    assert metadata == METADATA
    header = tensor_files.read_header(path)
    assert header.tensors["columns"].shape == (4, 3) and METADATA.items() <= header.metadata.items()


def test_other_programs_read_it(path):
    """MLX's own reader, and the checksum by its definition in docs/file_formats.md."""
    found, metadata = loaded(path)
    check_equal(found, TENSORS)
    assert metadata.items() > METADATA.items()
    header, body = parts(path)
    texts = header.pop("__metadata__")
    expected = int(texts.pop("crc32"), 16)
    about = [[name, [h["dtype"], h["shape"]]] for name, h in sorted(header.items())]
    crc = zlib.crc32(json.dumps([sorted(map(list, texts.items())), about]).encode())
    for _, h in sorted(header.items()):
        crc = zlib.crc32(body[slice(*h["data_offsets"])], crc)
    assert crc == expected


def test_it_is_written_while_mlx_computes_nothing(tmp_path, monkeypatch):
    """All threads' evaluations wait while some are under way, which may be without end."""
    mx.eval(TENSORS)
    types = SimpleNamespace(bfloat16=mx.bfloat16, uint16=mx.uint16)
    monkeypatch.setattr(tensor_files, "mx", types)
    tensor_files.write(tmp_path / "b.safetensors", TENSORS, METADATA)
    monkeypatch.undo()
    check_equal(tensor_files.read(tmp_path / "b.safetensors")[0], TENSORS)


def test_files_without_a_checksum_are_read(tmp_path):
    made = tmp_path / "b.safetensors"
    for metadata in None, {}, METADATA:
        mx.save_safetensors(str(made), TENSORS, metadata)
        found, told = tensor_files.read(made)
        check_equal(found, TENSORS)
        assert told == (metadata or {})
    assert tensor_files.read(with_header(made, {})) == ({}, {})


# ---- damage --------------------------------------------------------------------------------------


def test_a_flipped_bit_is_noticed_or_changes_nothing(path):
    """In every byte of the header and of the tensors."""
    whole = path.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    bits, refused = np.random.default_rng(0).integers(8, size=len(whole)), 0
    for place, bit in enumerate(bits):
        data = bytearray(whole)
        data[place] ^= 1 << int(bit)
        path.write_bytes(data)
        try:
            found, metadata = tensor_files.read(path)
        except UserError as error:
            assert f"{path} can't be read as safetensors: " in str(error)
            refused += 1
            continue
        check_equal(found, TENSORS)
        assert METADATA.items() <= metadata.items()
        assert place < length, "a tensor's bit changed unnoticed"
    assert refused > 0.9 * len(whole)


def test_every_length_is_refused(path):
    whole = path.read_bytes()
    for length in [*range(0, 400, 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="can't be read as safetensors"):
            tensor_files.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(UserError, match="its header tells of"):
        tensor_files.read(path)


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


WRONG = {  # a header -> what is said
    "no JSON": (b"\xff{}", "isn't JSON"),
    "deep": (b"[" * 100_000, "isn't JSON"),
    "a list": (b"[]", "no dictionary"),
    "metadata": ({"__metadata__": {"a": 1}}, "aren't texts"),
    "metadata is a list": ({"__metadata__": []}, "aren't texts"),
    "a number": ({"a": 5}, "makes no sense"),
    "negative": ({"a": entry(shape=[-2])}, "makes no sense"),
    "a fraction": ({"a": entry(shape=[2.0])}, "makes no sense"),
    "true": ({"a": entry(shape=[True, 2])}, "makes no sense"),
    "one offset": ({"a": entry(offsets=[8])}, "makes no sense"),
    "an unknown type": ({"a": entry(dtype="F8_E4M3")}, "is of type 'F8_E4M3', expected one of"),
    "a type that is a list": ({"a": entry(dtype=["F32"])}, "is of type"),
    "other shape": ({"a": entry(shape=[3])}, "has 8 bytes"),
    "huge": ({"a": entry(shape=[2**40, 2**40, 0], offsets=[0, 0])}, "has 0 bytes"),
    "overflow": ({"a": entry(shape=[2**62, 4], offsets=[0, 0])}, "has 0 bytes"),
    "backwards": ({"a": entry(offsets=[8, 0])}, "bytes"),
    "a gap": ({"a": entry(offsets=[4, 12])}, "doesn't begin where"),
    "overlapping": ({"a": entry(), "b": entry(offsets=[4, 12])}, "doesn't begin where"),
    "beyond": ({"a": entry(shape=[4], offsets=[0, 16])}, "its header tells of"),
}


def test_headers_that_make_no_sense(tmp_path):
    for what, (header, said) in WRONG.items():
        made = with_header(tmp_path / "b.safetensors", header, bytes(8))
        for read in tensor_files.read, tensor_files.read_header:
            with pytest.raises(UserError, match="the file is damaged") as caught:
                read(made)
            assert said in str(caught.value), what
    for length in (0, 1, 2**63, 2**64 - 1, 200_000_000):
        made = with_header(tmp_path / "b.safetensors", {"a": entry()}, bytes(8), length)
        with pytest.raises(UserError, match="don't begin with a header"):
            tensor_files.read(made)


# ---- what isn't a file of tensors ----------------------------------------------------------------


def test_a_sparse_file_of_100_gb(tmp_path):
    """Refused by its header, or by its size: nothing of it is read."""
    made = tmp_path / "b.safetensors"
    made.touch()
    os.truncate(made, 100 * 10**9)
    with pytest.raises(UserError, match="100000000000 bytes don't begin with a header"):
        tensor_files.read(made)
    size = 10**13
    with_header(made, {"a": entry("U8", [10**4, 10**9], [0, size])})
    try:
        os.truncate(made, made.stat().st_size + size)
    except OSError:
        pytest.skip("this disk has no files so large")
    with pytest.raises(UserError, match=r"has 10000\.0 GB, more than this machine"):
        tensor_files.read(made)


def test_a_fifo_and_a_device_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in tmp_path / "fifo", Path("/dev/zero"):
        with pytest.raises(OSError, match="not a file, but a pipe or a device"):
            tensor_files.read(path)
    with pytest.raises(IsADirectoryError):
        tensor_files.read(tmp_path)
