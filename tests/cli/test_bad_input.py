"""Bad input and broken machines: one message with a hint, exit code 2, no files left."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from running import TINY, files, only, records, run

WEIGHTS = 8 * 121 + 6 * 8 + 24 * 8  # numbers of TINY's policy: encoder, decoder, network


def check_message(code: int, stderr: str, *expected: str) -> None:
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
def test_a_missing_gpu_is_an_error(script, here, capsys):
    code = script.main([*TINY, "--device", "gpu"])
    check_message(code, capsys.readouterr().err, "this build of MLX has no GPU", "--device cpu")
    assert files(here) == set()


# ---- weights -------------------------------------------------------------------------------------


def test_weights_that_can_not_be_read_leave_no_files(script, here, capsys):
    """Other kinds of files, pipes, and files of 100 GB."""
    (here / "model.pt").write_bytes(b"pickle")
    code = script.main([*TINY, "--load-model-path", "model.pt"])
    said = "model.pt", "neither a .safetensors nor a .bin file"
    check_message(code, capsys.readouterr().err, *said)
    assert files(here) == {"model.pt"}
    os.mkfifo(here / "model.bin")
    code = script.main([*TINY, "--load-model-path", "model.bin"])
    check_message(code, capsys.readouterr().err, "can't read model.bin: not a file, but a pipe")
    for name in "model.safetensors", "toy.ini":
        (here / name).touch()
        os.truncate(here / name, 100 * 10**9)
        words = ["toy.ini"] if name == "toy.ini" else [*TINY, "--load-model-path", name]
        check_message(script.main(words), capsys.readouterr().err, name, " 100000000000 bytes")


def test_a_path_of_5000_characters_is_a_short_message(script, here, capsys):
    code = script.main([*TINY, "--load-model-path", 5000 * "x"])
    error = capsys.readouterr().err
    check_message(code, error, "File name too long")
    assert len(error) < 600


# ---- folders that can't be written ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "folder", "said"),
    [
        ("--checkpoint-dir", "taken/deeper", "can't write "),
        ("--log-dir", "locked", "Permission denied"),  # after the configuration
    ],
)
def test_a_folder_that_cannot_be_written_shows_before_training(
    permissions, script, here, capsys, option, folder, said
):
    (here / "taken").write_text("mine")
    (here / "locked").mkdir(mode=0o500)
    code = script.main([*TINY, option, folder])
    captured = capsys.readouterr()
    check_message(code, captured.err, said, folder, option)
    assert " steps | " not in captured.out
    assert (here / "taken").read_text() == "mine"
    assert {Path(name).name for name in files(here)} <= {"config.ini", "taken"}


# ---- a full disk ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the folder of a complete training run, which compiles the environments."""
    folder = tmp_path_factory.mktemp("compiled")
    done = run("train", *TINY, "--checkpoint-dir", "kept", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def full(size: int, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the train command with files that can't grow beyond a size, as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return run("train", *TINY, *more, cwd=folder, preexec_fn=limit)


FULL = {  # too large -> the largest file, the file in the message, the number of files afterwards
    "the first checkpoint": (4 * WEIGHTS - 1, "weights.safetensors", 2),  # config.ini, log
    "its state": (4 * WEIGHTS + 1000, "state.safetensors", 5),  # and a checkpoint without it
}


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk_leaves_whole_files(compiled, tmp_path, what):
    size, name, count = FULL[what]
    done = full(size, tmp_path)
    check_message(done.returncode, done.stderr, f"{name}: ", "free some space")
    assert len(files(tmp_path)) == count
    assert all(not Path(file).name.startswith(".") for file in files(tmp_path))
    assert [record["epoch"] for record in records(tmp_path)] == [1]
    if count == 5:
        made = only(tmp_path, "checkpoints/*/*/0*")
        names = {path.name for path in made.iterdir()}
        assert names == {"config.ini", "weights.safetensors", "weights.bin"}


# ---- compilers -----------------------------------------------------------------------------------


def without(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the train command with an empty cache and PATH and no CC, unless these are given."""
    (tmp_path / "work").mkdir()
    inherited = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX")}
    settings = {"PATH": str(tmp_path), "PUFFER_MLX_CACHE": str(tmp_path / "cache")}
    env = {**inherited, **settings, **environment}
    return run("train", *TINY, cwd=tmp_path / "work", env=env)


def test_a_working_directory_that_was_removed_is_an_error(tmp_path):
    code = "import os, sys; os.rmdir(os.getcwd()); from puffer_mlx.cli.main import main;"
    code += " sys.exit(main(sys.argv[1:]))"
    (tmp_path / "gone").mkdir()
    line = [sys.executable, "-c", code, "train", "squared"]
    done = subprocess.run(line, cwd=tmp_path / "gone", capture_output=True, text=True, timeout=120)
    said = "error: the working directory was removed\n  hint: change to an existing directory\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_missing_compiler_or_cache_is_an_error(tmp_path):
    done = without(tmp_path)
    said = "the compiler 'cc' can't be run", "install a C compiler"
    check_message(done.returncode, done.stderr, *said)
    assert files(tmp_path) == set()
    path = os.environ.get("PATH", "")  # a cache that can't be written
    (tmp_path / "work").rmdir()
    (tmp_path / "taken").write_text("mine")
    done = without(tmp_path, PATH=path, PUFFER_MLX_CACHE=str(tmp_path / "taken" / "cache"))
    check_message(done.returncode, done.stderr, "set PUFFER_MLX_CACHE to a folder")
    assert files(tmp_path) == {"taken"}
