"""Wrong input to scripts/train.py: one message with a hint, exit code 2, no debris."""

import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from oracles import named
from running import BATCH, EPOCHS, TINY, files, only, records, run
from watching import before_training

from puffer_mlx import checkpoint

WEIGHTS = 8 * 121 + 6 * 8 + 24 * 8  # numbers of TINY's policy: encoder, decoder, network


def check_message(code: int, stderr: str, *expected: str) -> None:
    """One error with a hint, no traceback, and the words that make it useful."""
    assert code == 2, stderr
    lines = stderr.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1, stderr
    after = lines[next(i for i, line in enumerate(lines) if line.startswith("error: ")) :]
    assert any(line.strip().startswith("hint: ") and len(line) > 12 for line in after), stderr
    assert "Traceback" not in stderr and "object at 0x" not in stderr and "lambda" not in stderr
    for words in expected:
        assert words in stderr, stderr


# ---- configuration -------------------------------------------------------------------------------


@pytest.mark.skipif(mx.is_available(mx.gpu), reason="this machine has a GPU")
def test_no_gpu(script, here, capsys):
    code = script.main([*TINY, "--device", "gpu"])
    check_message(code, capsys.readouterr().err, "this build of MLX has no GPU", "--device cpu")
    assert files(here) == set()


# ---- weights -------------------------------------------------------------------------------------


def floats(count: int, value: float = 0.5) -> bytes:
    return np.full(count, value, "<f4").tobytes()


def safetensors(**shapes: tuple[int, ...]) -> bytes:
    """A whole safetensors file of zeros."""
    path = Path("source.safetensors")
    mx.save_safetensors(
        str(path), {name.replace("__", "."): mx.zeros(shape) for name, shape in shapes.items()}
    )
    data = path.read_bytes()
    path.unlink()
    return data


def whole(hidden: int = 8) -> bytes:
    return safetensors(
        encoder__weight=(hidden, 121),
        decoder__weight=(6, hidden),
        network__0__weight=(3 * hidden, hidden),
    )


MODELS: dict[str, tuple[str, Callable[[], bytes] | None, str]] = {
    "missing .bin": ("model.bin", None, "No such file"),
    "missing .safetensors": ("model.safetensors", None, "No such file"),
    "of another kind": ("model.pt", lambda: b"pickle", "neither a .safetensors nor a .bin file"),
    "empty .bin": ("model.bin", lambda: b"", f"has 0 bytes, expected {4 * WEIGHTS}"),
    "short .bin": ("model.bin", lambda: floats(WEIGHTS)[:-3], f"has {4 * WEIGHTS - 3} bytes"),
    "long .bin": ("model.bin", lambda: floats(WEIGHTS + 1), f"has {4 * WEIGHTS + 4} bytes"),
    "corrupt .bin": ("model.bin", lambda: floats(WEIGHTS, np.nan), "aren't finite"),
    ".bin of another policy": ("model.bin", lambda: floats(2 * WEIGHTS), "policy.hidden_size"),
    "empty .safetensors": ("model.safetensors", lambda: b"", "can't be read as safetensors"),
    "garbage .safetensors": (
        "model.safetensors",
        lambda: np.random.default_rng(0).bytes(3000),
        "can't be read as safetensors",
    ),
    "short .safetensors": ("model.safetensors", lambda: whole()[:-5], "can't be read as"),
    ".safetensors of another width": (
        "model.safetensors",
        lambda: whole(hidden=16),
        "encoder.weight: (16, 121), expected (8, 121)",
    ),
    ".safetensors of another depth": (
        "model.safetensors",
        lambda: safetensors(
            encoder__weight=(8, 121),
            decoder__weight=(6, 8),
            network__0__weight=(24, 8),
            network__1__weight=(24, 8),
        ),
        "network.1.weight: not in this policy",
    ),
}


def test_wrong_weights(script, here, capsys):
    for name, make, expected in MODELS.values():
        if make is not None:
            (here / name).write_bytes(make())
        before = files(here)
        code = script.main([*TINY, "--load-model-path", name])
        check_message(code, capsys.readouterr().err, expected, name)
        assert files(here) == before
        (here / name).unlink(missing_ok=True)


def test_the_weights_of_these_tests_would_load(script, here):
    """So what is refused above is refused for what is wrong with it."""
    for name, data in ("model.bin", floats(WEIGHTS)), ("model.safetensors", whole()):
        (here / name).write_bytes(data)
        assert script.main([*TINY, "--load-model-path", name, "--stop-at", "1"]) == 0


def test_a_pipe_and_files_of_100_gb(script, here, capsys):
    """Reading a pipe would wait for a writer; a file that is too large is refused by its size."""
    for name in "model.bin", "model.safetensors":
        os.mkfifo(here / name)
        code = script.main([*TINY, "--load-model-path", name])
        check_message(code, capsys.readouterr().err, f"can't read {name}: not a file, but a pipe")
        (here / name).unlink()
    for name in "model.bin", "model.safetensors", "toy.ini":
        (here / name).touch()
        os.truncate(here / name, 100 * 10**9)
        words = ["toy.ini"] if name == "toy.ini" else [*TINY, "--load-model-path", name]
        check_message(script.main(words), capsys.readouterr().err, name, " 100000000000 bytes")


TOO_LONG = """
    LONG, LONG.ini, ./LONG, squared --env.source LONG, TINY --profile LONG.json,
    TINY --checkpoint-dir LONG, TINY --log-dir LONG, TINY --resume LONG,
    TINY --load-model-path LONG, TINY --load-model-path LONG.safetensors
"""


def test_a_path_of_5000_characters(script, here, capsys):
    for line in TOO_LONG.split(","):
        words = line.replace("TINY", " ".join(TINY)).replace("LONG", 5000 * "x")
        code = script.main(words.split())
        error = capsys.readouterr().err
        check_message(code, error, "File name too long")
        assert len(error) < 600, line


# ---- folders that can't be written ---------------------------------------------------------------


@pytest.mark.parametrize(("option", "below"), [("--checkpoint-dir", "/deeper"), ("--log-dir", "")])
def test_a_folder_that_is_a_file(script, here, capsys, option, below):
    (here / "taken").write_text("mine")
    code = script.main([*TINY, option, f"taken{below}"])
    captured = capsys.readouterr()
    check_message(code, captured.err, "can't write ", "taken", option)
    assert " steps | " not in captured.out  # it shows before training
    assert (here / "taken").read_text() == "mine"
    # The configuration was written before the log was tried.
    assert {Path(name).name for name in files(here)} - {"config.ini"} == {"taken"}


@pytest.mark.parametrize("option", ["--checkpoint-dir", "--log-dir"])
def test_an_unwritable_folder(permissions, script, here, capsys, option):
    (here / "locked").mkdir(mode=0o500)
    code = script.main([*TINY, option, "locked"])
    check_message(code, capsys.readouterr().err, "Permission denied", option)
    assert {Path(name).name for name in files(here)} <= {"config.ini"}


# ---- training that breaks -----------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0, 1])
def test_losses_that_are_not_finite_leave_the_last_good_weights(
    script, here, monkeypatch, capsys, overlap
):
    """From the second epoch on rewards are NaN: the first one's weights are there in the end."""

    def broken(trainer, rollout):
        if trainer.epoch > 0:
            rollout.buffer.rows.rewards[:] = np.nan

    before_training(monkeypatch, broken)
    more = ["--checkpoint-interval", "1000", "--train.replay-ratio", "3"]  # 6 minibatches an epoch
    code = script.main([*TINY, *more, f"--train.overlap={overlap}"])
    expected = "10 minibatches in a row were not finite, first in the rollout", "its rewards aren't"
    check_message(code, capsys.readouterr().err, *expected)
    first, last = sorted(Path("checkpoints").glob("*/*/0*"))
    assert (first.name, last.name) == (f"{BATCH:016d}", f"{2 * BATCH:016d}")
    assert (first / "state.safetensors").exists()
    weights = [checkpoint.load(folder).weights for folder in (first, last)]
    for (_, one), (_, other) in zip(*map(named, weights), strict=True):
        assert np.isfinite(np.array(one)).all()
        np.testing.assert_array_equal(one, other)  # the second epoch was skipped


# ---- a full disk ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A whole run before those that can't write: MLX and the environments are compiled once."""
    folder = tmp_path_factory.mktemp("compiled")
    done = run("train", *TINY, "--checkpoint-dir", "kept", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def full(size: int, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A run whose files can't grow beyond a size: a write gives a part, the next one an error."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return run("train", *TINY, *more, cwd=folder, preexec_fn=limit)


FULL = {  # what doesn't fit -> the largest file, what the message names, files there are after it
    "the configuration": (100, "config.ini", 0),
    "the first checkpoint": (4 * WEIGHTS - 1, "weights.safetensors", 2),  # config.ini, log
    "its state": (4 * WEIGHTS + 1000, "state.safetensors", 5),  # and a checkpoint without it
}


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk(compiled, tmp_path, what):
    size, name, count = FULL[what]
    done = full(size, tmp_path)
    check_message(done.returncode, done.stderr, f"{name}: ", "free some space")
    assert len(files(tmp_path)) == count
    assert all(not Path(file).name.startswith(".") for file in files(tmp_path))
    if count:
        assert [record["epoch"] for record in records(tmp_path)] == [1]
    if count == 5:
        made = only(tmp_path, "checkpoints/*/*/0*")
        names = {path.name for path in made.iterdir()}
        assert names == {"config.ini", "weights.safetensors", "weights.bin"}


def test_a_disk_full_in_the_middle_of_the_log(compiled, tmp_path):
    """What was logged before is whole: no part of a record is left."""
    size = only(compiled, f"kept/*/*/{BATCH:016d}/state.safetensors").stat().st_size
    size += 64  # the time of the run is in it, with more or fewer digits
    # A checkpoint just fits; the log outgrows it after a few epochs.
    epochs = 3 * EPOCHS
    done = full(size, tmp_path, "--train.total-timesteps", str(epochs * BATCH))
    check_message(done.returncode, done.stderr, "can't write the log logs/squared/", "--log-dir")
    assert 2 <= len(records(tmp_path)) < epochs
    assert size - 2000 < only(tmp_path, "logs/squared/*").stat().st_size <= size
    # configuration, log, the first checkpoint and the last weights, which no run can go on from
    assert len(files(tmp_path)) == 2 + 4 + 3


# ---- compilers -----------------------------------------------------------------------------------


def without(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A run with an empty cache, an empty PATH and no CC but what is given."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "work").mkdir()
    inherited = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX")}
    settings = {"PATH": str(tmp_path / "empty"), "PUFFER_MLX_CACHE": str(tmp_path / "cache")}
    env = {**inherited, **settings, **environment}
    return run("train", *TINY, cwd=tmp_path / "work", env=env)


def test_no_compiler(tmp_path):
    done = without(tmp_path)
    check_message(
        done.returncode, done.stderr, "the compiler 'cc' can't be run", "install a C compiler"
    )
    assert files(tmp_path) == set()


FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo fake 1.0; exit; fi
echo "toy.c:1:2: error: this compiler is out of order" >&2
echo half > "$PUFFER_MLX_CACHE/half.o"
exit 3
"""


def test_a_compiler_that_fails(tmp_path):
    fake = tmp_path / "fakecc"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    done = without(tmp_path, CC=str(fake))
    expected = "squared: ", "failed with status 3", "this compiler is out of order"
    check_message(done.returncode, done.stderr, *expected)
    assert files(tmp_path) == {"fakecc", "cache/half.o"}  # nothing of puffer_mlx's own


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("mine")
    path = os.environ.get("PATH", "")
    done = without(tmp_path, PATH=path, PUFFER_MLX_CACHE=str(tmp_path / "taken" / "cache"))
    check_message(done.returncode, done.stderr, "set PUFFER_MLX_CACHE to a folder")
    assert files(tmp_path) == {"taken"}


# ---- as a process --------------------------------------------------------------------------------


def test_the_exit_code_of_the_process(tmp_path):
    """All of the above that ran in this process ends like this."""
    done = run("train", "squared", "--train.gamma", 2, cwd=tmp_path)
    assert done.stdout == ""
    check_message(done.returncode, done.stderr, "train.gamma 2.0 is out of range")
    assert done.stderr.startswith("error: ") and files(tmp_path) == set()
