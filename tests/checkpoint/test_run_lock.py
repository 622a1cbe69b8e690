"""`checkpoint/folder.py`: one process trains a run; what killed ones left is cleared away."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import folder as run_folders
from puffer_mlx.checkpoint.folder import lock_run, new_run
from puffer_mlx.config import Base, Config
from puffer_mlx.errors import UserError
from puffer_mlx.system import files

HOLD = """
import sys, time
from pathlib import Path
from puffer_mlx.checkpoint.folder import lock_run
with lock_run(Path(sys.argv[1])):
    print("lock_run", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def config(tmp_path):
    return Config("squared", base=Base(checkpoint_dir=str(tmp_path / "checkpoints")))


@contextlib.contextmanager
def another_process(folder):
    """One that holds a folder, until its standard input ends."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "lock_run\n"
            yield process
        finally:
            process.kill()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.processes
def test_only_one_process_holds_a_run(tmp_path):
    with lock_run(tmp_path), pytest.raises(UserError, match="in use"), lock_run(tmp_path):
        pass
    with another_process(tmp_path) as process:
        with (
            pytest.raises(UserError, match="is in use by another process") as caught,
            lock_run(tmp_path),
        ):
            raise AssertionError("it is lock_run twice")
        assert str(process.pid) in str(caught.value) and str(tmp_path) in str(caught.value)
        process.communicate("")
    with lock_run(tmp_path):
        assert names(tmp_path) == [".lock"]
    assert names(tmp_path) == []


@pytest.mark.processes
def test_a_kill_lets_go(tmp_path):
    with another_process(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert names(tmp_path) == [".lock"]  # the file is nothing without the process
    with lock_run(tmp_path):
        pass
    assert names(tmp_path) == []


def test_where_there_are_no_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".0000000000000064-abcd1234").mkdir()
    with lock_run(tmp_path), lock_run(tmp_path):
        assert ".0000000000000064-abcd1234" in names(tmp_path)  # perhaps it's another process's
    assert names(tmp_path) == [".0000000000000064-abcd1234"]


def test_what_killed_saves_left_is_removed(tmp_path):
    left = [".0000000000000064-a_cd1234", ".0000000000000128-ab2d1234"]
    kept = [".mine", ".my-settings", "0000000000000064", "config.ini", ".hidden-abcd1234"]
    for name in left + kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(b"half")
    (tmp_path / ".config-abcd1234.ini").write_text("half")
    (tmp_path / ".best-4711").symlink_to("0000000000000064")
    with lock_run(tmp_path):
        assert names(tmp_path) == sorted([*kept, ".lock"])


def test_those_are_the_names_that_killed_saves_leave(tmp_path, monkeypatch):
    """The pattern follows system/files.py."""
    seen = []

    def stop(source, target):
        seen.append(os.path.basename(target if str(target).endswith("best") else source))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt), files.publish(tmp_path / "config.ini"):
        pass
    with pytest.raises(KeyboardInterrupt), files.publish_folder(tmp_path / f"{64:016d}"):
        pass
    with pytest.raises(KeyboardInterrupt):
        files.publish_link(tmp_path / "best", "0000000000000064")
    (made,) = tmp_path.glob(".best*")  # as a kill would leave it
    assert all(run_folders.TEMPORARY.fullmatch(name) for name in (*seen[:2], made.name)), seen
    monkeypatch.undo()
    (tmp_path / f"{64:016d}").mkdir()
    monkeypatch.setattr("shutil.rmtree", lambda _: None)
    files.remove_folder(tmp_path / f"{64:016d}")
    (doomed,) = tmp_path.glob(".0*")
    assert run_folders.TEMPORARY.fullmatch(doomed.name)


def test_new_runs_never_wait_for_each_other(config, monkeypatch):
    """Not even those that begin within the same millisecond."""
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
    with new_run(config) as one, new_run(config) as two:
        assert [one.name, two.name] == ["5", "6"]
        assert names(one) == [".lock", "config.ini"]
    assert names(two) == ["config.ini"]


def test_a_folder_that_can_not_be_made(config, tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="can't write"), new_run(config):
        pass
    assert checkpoint.run_folder(config, "1").parent.parent.read_text() == "a file"
