"""Weights to files and back, and everything that can be wrong with a file or a disk."""

import errno
import json
import os
import struct
import subprocess
import sys
import textwrap

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import named

from puffer_mlx import checkpoint, weights_io
from puffer_mlx.config import Base, Config
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SAVE = {".bin": weights_io.save_bin, ".safetensors": weights_io.save_safetensors}
KINDS = pytest.mark.parametrize("kind", SAVE)


def make(D=118, H=64, L=2, sizes=(3,), seed=0):
    spec = EnvSpec("x", D, np.dtype(np.float32), ActionSpec(sizes))
    return make_policy(spec, H, L).init(mx.random.key(seed))


def small(seed=0):
    return make(5, 4, 1, seed=seed)


def same(one, other):
    pairs = zip(named(one), named(other), strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)


def files(folder):
    return sorted(p.name for p in folder.iterdir())


# ---- round trips ---------------------------------------------------------------------------------


@KINDS
def test_round_trip(tmp_path, kind):
    weights, path = make(), tmp_path / "deep" / "folders" / f"w{kind}"
    SAVE[kind](weights, path)
    assert files(path.parent) == [path.name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()
    loaded = weights_io.load_weights(path, make(seed=1))
    assert same(loaded, weights) and not same(loaded, make(seed=1))
    again = tmp_path / f"again{kind}"
    SAVE[kind](loaded, again)
    assert again.read_bytes() == path.read_bytes()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_flat_file_is_upstreams(tmp_path):
    """Table 5.3: encoder, decoder and layers at byte 0, 30208, 31232 and 80384; 129536 in all."""
    weights, path = make(), tmp_path / "w.bin"
    weights_io.save_bin(weights, path)
    data = path.read_bytes()
    assert len(data) == 129536
    for at, w in (
        (0, weights["encoder"]["weight"]),
        (30208, weights["decoder"]["weight"]),
        (31232, weights["network"][0]["weight"]),
        (80384, weights["network"][1]["weight"]),
    ):
        found = np.frombuffer(data, "<f4", w.size, at).reshape(w.shape)  # rows one after the other
        np.testing.assert_array_equal(found, np.array(w))


def test_arrays_that_are_not_contiguous(tmp_path):
    weights = small()
    turned = tree_map(lambda w: mx.contiguous(w.T).T, weights)
    for kind, save in SAVE.items():
        save(turned, tmp_path / f"w{kind}")
        assert same(weights_io.load_weights(tmp_path / f"w{kind}", weights), weights)


def test_names_of_safetensors(tmp_path):
    weights_io.save_safetensors(make(), tmp_path / "w.safetensors")
    loaded = mx.load(str(tmp_path / "w.safetensors"))
    assert isinstance(loaded, dict)
    assert set(loaded) == {
        "encoder.weight",
        "decoder.weight",
        "network.0.weight",
        "network.1.weight",
    }


# ---- files that can't be read --------------------------------------------------------------------


def refused(path, *words, like=None):
    with pytest.raises(UserError) as caught:
        weights_io.load_weights(path, small() if like is None else like)
    message = str(caught.value)
    assert caught.value.hint
    for word in (os.path.basename(path), *words):
        assert str(word) in message, message
    return message


@KINDS
def test_missing_files_and_folders(tmp_path, kind):
    refused(tmp_path / f"w{kind}", "No such file")
    (tmp_path / f"folder{kind}").mkdir()
    refused(tmp_path / f"folder{kind}")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError):
        weights_io.load_weights(tmp_path / "file" / f"w{kind}", small())


def test_another_suffix(tmp_path):
    for name in ("w.pt", "w", "w.BIN"):
        (tmp_path / name).write_bytes(b"x" * 336)
        refused(tmp_path / name, ".safetensors", ".bin")


@pytest.mark.parametrize("size", [0, 1, 335, 333, 337, 340, 332, 672])
def test_bin_of_another_size(tmp_path, size):
    # (4 * 5 + 4 * 4 + 12 * 4) * 4 bytes = 336
    (tmp_path / "w.bin").write_bytes(b"\0" * size)
    refused(tmp_path / "w.bin", f"{size} bytes", "expected 336", "(12, 4)")


def test_bin_of_zeros_is_fine(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 336)
    loaded = weights_io.load_weights(tmp_path / "w.bin", small())
    assert same(loaded, tree_map(mx.zeros_like, small()))


@KINDS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(tmp_path, kind, bad):
    weights = small()
    weights["network"][0]["weight"][11, 3] = bad  # the last one
    SAVE[kind](weights, tmp_path / f"w{kind}")
    refused(tmp_path / f"w{kind}", "finite")


def test_safetensors_of_another_policy(tmp_path):
    path = tmp_path / "w.safetensors"
    for other, word in (
        (make(6, 4, 1), "encoder.weight: (4, 6), expected (4, 5)"),
        (make(5, 4, 2), "network.1.weight: not in this policy"),
        (make(5, 4, 1, (2,)), "decoder.weight: (3, 4), expected (4, 4)"),
    ):
        weights_io.save_safetensors(other, path)
        refused(path, word)
    weights_io.save_safetensors(small(), path)
    refused(path, "network.1.weight: missing, expected (12, 4)", like=make(5, 4, 2))


def test_damaged_safetensors(tmp_path):
    """Cut off, a byte of the header changed, or garbage: one UserError, or the very weights."""
    weights, path = small(), tmp_path / "w.safetensors"
    weights_io.save_safetensors(weights, path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    damaged = [data[:n] for n in range(0, len(data), 13)] + [data[:-1]]
    rng = np.random.default_rng(0)
    for i in rng.integers(0, 8 + length, 300):
        byte = bytes([rng.integers(256)])
        damaged.append(data[:i] + byte + data[i + 1 :])
    for edit in (
        {"dtype": "Q7"},
        {"dtype": 7},
        {"shape": "4"},
        {"shape": [-4, -4]},
        {"data_offsets": [-64, 0]},
        {"data_offsets": [10**12, 10**12 + 64]},
        {"data_offsets": []},
    ):
        text = json.dumps(
            {**header, "decoder.weight": {**header["decoder.weight"], **edit}}
        ).encode()
        damaged.append(struct.pack("<Q", len(text)) + text + data[8 + length :])
    damaged += [rng.bytes(n) for n in (3, 100, 5000)]
    damaged += [struct.pack("<Q", n) + b"{}" for n in (2, 2**31, 2**63)]
    for content in damaged:
        path.write_bytes(content)
        try:
            loaded = weights_io.load_weights(path, weights)
        except UserError as error:
            assert path.name in str(error) and error.hint
        else:
            assert content[-len(data) + 8 + length :] == data[8 + length :]
            assert same(loaded, weights)


# ---- disks that can't be written -----------------------------------------------------------------


@KINDS
def test_a_folder_that_can_not_be_written(tmp_path, kind):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="can't write") as caught:
        SAVE[kind](small(), tmp_path / "file" / f"w{kind}")
    assert caught.value.hint
    assert files(tmp_path) == ["file"]
    with pytest.raises(UserError, match="can't write"):
        SAVE[kind](small(), tmp_path / "file" / "deeper" / f"w{kind}")
    (tmp_path / f"folder{kind}").mkdir()
    with pytest.raises(UserError, match="can't write"):
        SAVE[kind](small(), tmp_path / f"folder{kind}")
    assert files(tmp_path) == ["file", f"folder{kind}"]


@KINDS
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path, kind):
    folder = tmp_path / "closed"
    folder.mkdir(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        SAVE[kind](small(), folder / f"w{kind}")
    assert files(folder) == []


@KINDS
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_write_that_fails(tmp_path, monkeypatch, kind, call, failure):
    old, path = small(1), tmp_path / f"w{kind}"
    SAVE[kind](old, path)
    before = path.read_bytes()

    def fail(*_):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        expected = UserError if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(expected, match="No space left" if expected is UserError else None):
            SAVE[kind](small(2), path)
    assert files(tmp_path) == [path.name]
    assert path.read_bytes() == before


@KINDS
def test_a_full_disk(tmp_path, kind):
    """A limit on the size of files stops a write half way, as a full disk does."""
    path = tmp_path / f"w{kind}"
    SAVE[kind](make(), path)
    before = path.read_bytes()
    script = f"""
        import resource, signal, sys
        from pathlib import Path
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        import puffer_mlx
        from test_weights_io import SAVE, UserError, make, mx
        weights = make(seed=1)
        mx.eval(weights)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            SAVE[{kind!r}](weights, Path({str(path)!r}))
        except UserError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"can't write {path}: ") and "hint:" in done.stdout
    assert not done.stderr
    assert files(tmp_path) == [path.name]
    assert path.read_bytes() == before


# ---- checkpoints ---------------------------------------------------------------------------------


def config(tmp_path):
    return Config("squared", base=Base(checkpoint_dir=str(tmp_path / "checkpoints")))


def saved(folder, weights, steps):
    path = checkpoint.path_of(folder, steps)
    checkpoint.save(path, weights)
    return path


def test_checkpoint(tmp_path):
    c = config(tmp_path)
    folder = checkpoint.prepare(c, "17")
    assert folder == tmp_path / "checkpoints" / "squared" / "17"
    path = saved(folder, small(), 262144)
    names = ["0000000000262144.bin", "0000000000262144.safetensors", "config.ini"]
    assert files(folder) == names and path == folder / names[1]
    for name in names[:2]:
        assert same(weights_io.load_weights(folder / name, small(1)), small())


def test_a_checkpoint_folder_that_can_not_be_written(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="can't write"):
        checkpoint.prepare(config(tmp_path), "17")
    assert files(tmp_path) == ["checkpoints"]


def test_checkpoint_rhythm(tmp_path):
    c = config(tmp_path)
    c.base.checkpoint_interval, c.train.total_timesteps = 4, 10 * c.batch_size
    assert [e for e in range(10) if checkpoint.is_due(c, e)] == [0, 4, 8, 9]


def test_finding_weights(tmp_path):
    c = config(tmp_path)
    with pytest.raises(UserError, match="no checkpoint") as caught:
        checkpoint.find_weights("latest", c)
    assert str(tmp_path / "checkpoints" / "squared") in str(caught.value)

    one, two = (checkpoint.prepare(c, run) for run in ("1", "2"))
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.find_weights(str(one), c)
    paths = [
        saved(folder, small(), steps)
        for folder, steps in ((one, 900), (two, 1000), (one, 1100), (two, 500))
    ]
    for age, path in enumerate(paths):
        os.utime(path, ns=(10**18, 10**18 + age))
    assert checkpoint.find_weights("latest", c) == paths[3]  # the newest, of any run
    assert checkpoint.find_weights(str(one), c) == paths[2]  # the most steps
    assert checkpoint.find_weights(str(two), c) == paths[1]
    assert checkpoint.find_weights(str(paths[0]), c) == paths[0]
    missing = tmp_path / "nowhere.safetensors"
    assert checkpoint.find_weights(str(missing), c) == missing
    refused(missing, "No such file")

    for path in paths[:2]:
        path.unlink()
    assert checkpoint.find_weights(str(two), c) == paths[3]
    (two / paths[3].name).unlink()
    assert checkpoint.find_weights(str(two), c) == two / "0000000000001000.bin"


def test_what_a_killed_run_left_is_no_checkpoint(tmp_path):
    """A run killed while it writes leaves its temporary file, the newest in the folder."""
    c = config(tmp_path)
    folder = checkpoint.prepare(c, "1")
    temporaries = []
    with pytest.MonkeyPatch.context() as patch:  # what the name would be
        patch.setattr(os, "fsync", lambda _: temporaries.extend(p.name for p in folder.iterdir()))
        path = saved(folder, small(), 100)
    temporary = [name for name in temporaries if name.endswith(".safetensors")][-1]
    assert temporary != path.name
    (folder / temporary).write_bytes(path.read_bytes()[:100])
    os.utime(folder / temporary, ns=(2 * 10**18, 2 * 10**18))
    assert checkpoint.find_weights("latest", c) == path
    assert checkpoint.find_weights(str(folder), c) == path
    path.unlink()
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.find_weights("latest", c)
