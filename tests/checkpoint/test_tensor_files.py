"""`checkpoint/tensor_files.py`: tensors are read back exactly, and damage is one message."""

import json
import os
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
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
    """Return the path of a safetensors file with tensors of all types."""
    made = tmp_path / "a.safetensors"
    tensor_files.write_tensors(made, TENSORS, METADATA)
    return made


def plain(array):
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(plain(found[name]), plain(array), err_msg=name)


def with_header(path, header, body=b""):
    """Write a safetensors file with a custom header; return its path."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


# ---- whole files ---------------------------------------------------------------------------------


def test_mlx_reads_the_file_and_the_checksum_is_the_documented_one(path):
    """The definition is in docs/file_formats.md."""
    found, metadata = loaded(path)
    check_equal(found, TENSORS)
    assert metadata.items() > METADATA.items()
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    texts = header.pop("__metadata__")
    expected = int(texts.pop("crc32"), 16)
    about = [[name, [h["dtype"], h["shape"]]] for name, h in sorted(header.items())]
    crc = zlib.crc32(json.dumps([sorted(map(list, texts.items())), about]).encode())
    for _, h in sorted(header.items()):
        crc = zlib.crc32(data[end:][slice(*h["data_offsets"])], crc)
    assert crc == expected


def test_tensors_and_metadata_are_read_back_and_writing_evaluates_nothing(tmp_path, monkeypatch):
    """An evaluation would wait for those of other threads, perhaps forever."""
    mx.eval(TENSORS)
    types = SimpleNamespace(bfloat16=mx.bfloat16, uint16=mx.uint16)
    monkeypatch.setattr(tensor_files, "mx", types)
    tensor_files.write_tensors(tmp_path / "b.safetensors", TENSORS, METADATA)
    monkeypatch.undo()
    found, metadata = tensor_files.read_tensors(tmp_path / "b.safetensors")
    check_equal(found, TENSORS)
    assert metadata == METADATA
    header = tensor_files.read_tensor_header(tmp_path / "b.safetensors")
    assert header.tensors["columns"].shape == (4, 3) and METADATA.items() <= header.metadata.items()


@pytest.mark.parametrize("metadata", [None, METADATA])
def test_files_without_a_checksum_are_read(tmp_path, metadata):
    made = tmp_path / "b.safetensors"
    mx.save_safetensors(str(made), TENSORS, metadata)
    found, texts = tensor_files.read_tensors(made)
    check_equal(found, TENSORS)
    assert texts == (metadata or {})


# ---- damage --------------------------------------------------------------------------------------


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    place=st.floats(0, 1, exclude_max=True),
    flips=st.integers(0, 255),
    cut=st.just(1.0) | st.floats(0, 1),
    more=st.sampled_from([b"", b"", b"\0"]),
)
def test_changed_bytes_are_noticed_or_change_nothing(tmp_path, path, place, flips, cut, more):
    whole = path.read_bytes()
    data = bytearray(whole)
    data[int(place * len(data))] ^= flips
    data = data[: int(cut * len(data))] + more
    damaged = tmp_path / "b.safetensors"
    damaged.write_bytes(data)
    try:
        found, metadata = tensor_files.read_tensors(damaged)
    except UserError as error:
        assert f"{damaged} can't be read as safetensors: " in str(error)
        assert data != whole
        return
    check_equal(found, TENSORS)
    assert METADATA.items() <= metadata.items()
    header = 8 + int.from_bytes(whole[:8], "little")
    assert len(data) == len(whole) and data[header:] == whole[header:]


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


WRONG = [  # header, part of the message
    (b"\xff{}", "isn't JSON"),
    (b"[" * 100_000, "isn't JSON"),
    (b"[]", "isn't a dictionary"),
    ({"__metadata__": {"a": 1}}, "isn't text"),
    ({"__metadata__": []}, "isn't text"),
    ({"a": 5}, "is invalid"),
    ({"a": entry(shape=[-2])}, "is invalid"),
    ({"a": entry(shape=[True, 2])}, "is invalid"),
    ({"a": entry(offsets=[8])}, "is invalid"),
    ({"a": entry(dtype="F8_E4M3")}, "is of type 'F8_E4M3', expected one of"),
    ({"a": entry(dtype=["F32"])}, "is of type"),
    ({"a": entry(shape=[1] * 100, offsets=[0, 4])}, "has 100 dimensions"),
    ({"a": entry(shape=[2**40, 2**40, 0], offsets=[0, 0])}, "has 0 bytes"),
    ({"a": entry(shape=[2**62, 4], offsets=[0, 0])}, "has 0 bytes"),
    ({"a": entry(offsets=[8, 0])}, "bytes"),
    ({"a": entry(), "b": entry(offsets=[4, 12])}, "doesn't begin where"),
    ({"a": entry(shape=[4], offsets=[0, 16])}, "its header says"),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wrong=st.sampled_from(WRONG))
def test_senseless_headers_are_refused(tmp_path, wrong):
    header, message = wrong
    made = with_header(tmp_path / "b.safetensors", header, bytes(8))
    with pytest.raises(UserError, match="the file is damaged") as caught:
        tensor_files.read_tensors(made)
    assert message in str(caught.value)
    with pytest.raises(UserError, match="the file is damaged"):
        tensor_files.read_tensor_header(made)


@given(length=st.integers(0, 2**64 - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_impossible_lengths_of_a_header_are_refused(tmp_path, length):
    made = with_header(tmp_path / "b.safetensors", {"a": entry()}, bytes(8))
    data = made.read_bytes()
    assume(length != len(data) - 16)
    made.write_bytes(struct.pack("<Q", length) + data[8:])
    with pytest.raises(UserError, match="the file is damaged"):
        tensor_files.read_tensors(made)


# ---- what isn't a file of tensors ----------------------------------------------------------------


def test_a_file_larger_than_memory_is_refused_without_reading_it(tmp_path):
    made = tmp_path / "b.safetensors"
    made.touch()
    os.truncate(made, 100 * 10**9)
    with pytest.raises(UserError, match="100000000000 bytes don't begin with a header"):
        tensor_files.read_tensors(made)
    size = 10**13
    with_header(made, {"a": entry("U8", [10**4, 10**9], [0, size])})
    try:
        os.truncate(made, made.stat().st_size + size)
    except OSError:
        pytest.skip("this disk has no files so large")
    with pytest.raises(UserError, match=r"has 10000\.0 GB, more than this machine"):
        tensor_files.read_tensors(made)


def test_a_pipe_a_device_and_a_folder_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in tmp_path / "fifo", Path("/dev/zero"):
        with pytest.raises(OSError, match="not a file, but a pipe or a device"):
            tensor_files.read_tensors(path)
    with pytest.raises(IsADirectoryError):
        tensor_files.read_tensors(tmp_path)
