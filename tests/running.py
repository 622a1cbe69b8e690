"""Tiny settings, and functions that run a command in this or another process."""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]

BATCH = 8 * 8  # steps of an epoch of TINY
EPOCHS = 6
TINY = f"""
    squared --device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents 8
    --train.horizon 8 --train.minibatch-size 32 --train.total-timesteps {EPOCHS * BATCH}
""".split()


def cli(name: str) -> ModuleType:
    """Return the module of a command, which scripts/NAME.py runs."""
    return importlib.import_module(f"puffer_mlx.cli.{'import_' if name == 'import' else name}")


def module_of(path: Path) -> Any:
    """Import a file outside the package under its own name, and return the module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(name: str, *argv: object) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *map(str, argv)]


def run(name: str, *argv: object, cwd: Path, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process to its end; return the finished process.

    With a PYTHONPATH in ``env`` that path's package runs; a script would use the package beside it.
    """
    words = command(name, *argv)
    if "PYTHONPATH" in how.get("env", {}):
        words[1:2] = ["-m", "puffer_mlx", name.replace("_", "-")]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120, **how)
    done.stderr = errors(done.stderr)
    return done


def copied_package(folder: Path) -> Path:
    """Copy the package into a folder, with links to configs and envs.

    A file that is edited afterwards has another time, and is compiled again.
    """
    begun = shutil.ignore_patterns("*.pyc.*")  # by another process, which renames it soon
    copy = Path(shutil.copytree(ROOT / "puffer_mlx", folder / "puffer_mlx", ignore=begun))
    for name in ("configs", "envs"):
        (folder / name).symlink_to(ROOT / name)
    return copy


def train_with_added_file(folder: Path, file: str, text: str) -> Callable[..., tuple[str, int]]:
    """Copy the package and add a file to the copy; return a function that trains with it.

    Args:
        folder: An empty folder.
        file: Path of the added file in the package.
        text: Text of the added file.

    Returns:
        Function of a working directory and words for ``train`` that trains with the copy. It
        returns the output and the exit status.
    """
    (copied_package(folder) / file).write_text(text)

    def train(where: Path, *words: object) -> tuple[str, int]:
        where.mkdir(exist_ok=True)
        done = run("train", *words, cwd=where, env={**os.environ, "PYTHONPATH": str(folder)})
        return done.stdout + done.stderr, done.returncode

    return train


class Process:
    """A started command whose output is read line by line as it comes."""

    def __init__(self, words: list[str], cwd: Path, **how: Any) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.popen = subprocess.Popen(words, cwd=cwd, text=True, **{**pipes, **how})
        self._lines: dict[str, list[str]] = {}  # not asked for yet
        self._news, self._readers = threading.Condition(), []
        for name in "stdout", "stderr":
            if getattr(self.popen, name):
                self._lines[name] = []
                self._readers.append(threading.Thread(target=self._read, args=(name,)))
                self._readers[-1].start()

    def _read(self, name: str) -> None:
        with getattr(self.popen, name) as stream:
            for line in stream:
                with self._news:
                    self._lines[name].append(line)
                    self._news.notify()

    def wait_for(self, text: str, name: str = "stdout") -> None:
        """Wait for a line of the command's output that contains a text; drop earlier lines."""
        deadline = time.monotonic() + 120
        while True:
            over = not any(reader.is_alive() for reader in self._readers)
            with self._news:
                lines = self._lines[name]
                while lines:
                    if text in lines.pop(0):
                        return
                self._news.wait(0.05)
            assert not over and time.monotonic() < deadline, f"no {text!r}, but {self._lines}"

    def wait_for_error(self, text: str) -> None:
        """Wait for a line of the command's standard error that contains a text."""
        self.wait_for(text, "stderr")

    def end(self) -> tuple[int, str, str]:
        """Wait for the command's end.

        Returns the exit code, and the output and errors that weren't waited for.
        """
        code = self.popen.wait(120)
        for reader in self._readers:
            reader.join(120)
        out, err = ("".join(self._lines.get(name, [])) for name in ("stdout", "stderr"))
        return code, out, errors(err)


@contextlib.contextmanager
def started(words: list[str], cwd: Path, **how: Any) -> Iterator[Process]:
    """Start a ``Process``, and end it after the ``with`` block."""
    process = Process(words, cwd, **how)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
        process.end()


def benchmark(name: str, *argv: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of benchmarks/ in a separate process; return the finished process."""
    program = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *map(str, argv)]
    done = subprocess.run(program, cwd=cwd, capture_output=True, text=True, timeout=120)
    done.stderr = errors(done.stderr)
    return done


def errors(stderr: str) -> str:
    """Remove notes about compilation and its progress from a command's error output."""
    notes = ("training on the CPU will be", "compiling ", "measured ")
    notes = tuple(f"puffer_mlx: {note}" for note in notes)
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(notes))


def wait_until(met: Callable[[], object]) -> None:
    """Wait until a condition is met; fail after a minute."""
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Full(io.StringIO):
    """Text stream whose writes fail with an errno after ``after`` of them, like a full disk."""

    def __init__(self, number: int, after: int = 0) -> None:
        super().__init__()
        self.number, self.left = number, after

    def write(self, text: str) -> int:
        if self.left == 0:
            raise OSError(self.number, os.strerror(self.number))
        self.left -= 1
        return super().write(text)


def lose(
    monkeypatch: pytest.MonkeyPatch, number: int, after: int = 0, name: str = "stdout"
) -> Full:
    """Make writes to standard output or error fail with an errno; return the stream."""
    stream = Full(number, after)
    monkeypatch.setattr(sys, name, stream)
    return stream


def files(folder: Path) -> set[str]:
    """Return the paths of all files below a folder, also hidden ones, relative to it."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


def loaded(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file with MLX: return its tensors and metadata."""
    import mlx.core as mx  # puffer_mlx is to be imported before it

    arrays, metadata = mx.load(str(path), return_metadata=True)  # pyright: ignore
    mx.eval(arrays)
    return arrays, metadata  # pyright: ignore


def timeless(made: Path) -> dict[str, bytes]:
    """Return the contents of a checkpoint as bytes by name, without times."""
    from puffer_mlx import checkpoint  # not before it has chosen MLX's BLAS: see conftest.py

    kept = {name: (made / name).read_bytes() for name in ("weights.safetensors", "weights.bin")}
    state = checkpoint.load_state(made)
    del state.values["uptime"], state.values["log_position"]  # times, and bytes of times
    arrays = {name: np.array(a).tobytes() for name, a in state.arrays.items()}
    return kept | arrays | {"numbers": json.dumps(state.values).encode()}


def only(folder: Path, pattern: str) -> Path:
    """Return the only path that matches a pattern in a folder."""
    (path,) = folder.glob(pattern)
    return path


def records(folder: Path) -> list[dict[str, float]]:
    """Return the epoch records in the only log of a working directory."""
    text = only(folder, "logs/*/*.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def learned(record: dict[str, float]) -> dict[str, float]:
    """Return the metrics of an epoch's record that depend on the seed only, not on time."""
    return {
        key: value
        for key, value in record.items()
        if key not in ("SPS", "uptime") and not key.startswith(("perf/", "util/"))
    }


def killed_and_resumed(words: Sequence[Any], env: str, folder: Path, kills: int) -> int:
    """Train to the end, killed at random times after the first epoch and resumed.

    Args:
        words: Words of the training, which saves a checkpoint every epoch.
        env: Name of the environment.
        folder: Working directory.
        kills: Maximum number of kills (SIGKILL).

    Returns:
        Number of kills.
    """
    rng, done = np.random.default_rng(0), 0
    line = command("train", *words)
    for attempt in range(4 * kills):
        process = subprocess.Popen(line, cwd=folder, stdout=-1, stderr=-1, text=True)
        try:
            if attempt < kills and process.stdout:
                next((said for said in process.stdout if " steps | " in said), "")
                time.sleep(rng.uniform(0, 0.2))
                process.send_signal(signal.SIGKILL)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
        done += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            return done
        if list(folder.glob("checkpoints/*/*/0*/state.safetensors")):
            line = command("train", env, "--resume", "latest")
        else:  # killed before anything was saved: the run begins anew
            for name in "checkpoints", "logs":
                shutil.rmtree(folder / name)
    raise AssertionError(f"the run never ended: {err}")
