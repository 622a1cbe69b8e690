"""`checkpoint/folder.py`: one process trains a run; temporary files of killed ones are removed."""

import contextlib
import errno
import fcntl
import os
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
    """Start a process that locks a folder until its standard input ends."""
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
@pytest.mark.parametrize("killed", [False, True])
def test_a_run_is_locked_by_one_process_until_it_ends_or_is_killed(tmp_path, killed):
    with another_process(tmp_path) as process:
        with (
            pytest.raises(UserError, match="is in use by another process") as caught,
            lock_run(tmp_path),
        ):
            raise AssertionError("locked twice")
        assert str(process.pid) in str(caught.value) and str(tmp_path) in str(caught.value)
        if killed:
            process.kill()
            process.wait(60)
        else:
            process.communicate("")
    with lock_run(tmp_path), pytest.raises(UserError, match="in use"), lock_run(tmp_path):
        pass
    assert names(tmp_path) == []


def test_without_locks_temporary_files_are_not_removed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".0000000000000064-abcd1234").mkdir()
    with lock_run(tmp_path), lock_run(tmp_path):
        assert ".0000000000000064-abcd1234" in names(tmp_path)  # perhaps it's another process's
    assert names(tmp_path) == [".0000000000000064-abcd1234"]


def test_a_lock_removes_the_temporary_files_of_killed_saves_alone(tmp_path):
    left = [".0000000000000064-a_cd1234", ".config-abcd1234.ini"]
    kept = [".mine", ".my-settings", "0000000000000064", "config.ini", ".hidden-abcd1234"]
    videos = tmp_path / "videos"
    for name in [*left, *kept, "videos"]:
        (tmp_path / name).mkdir()
    for name in f".{7:016d}-abcd_123.gif", f"{7:016d}.gif", ".mine.gif":
        (videos / name).write_bytes(b"")
    (tmp_path / ".best-4711").symlink_to("0000000000000064")
    with lock_run(tmp_path):
        assert names(tmp_path) == sorted([*kept, ".lock", "videos"])
        assert names(videos) == [".mine.gif", f"{7:016d}.gif"]


def test_the_pattern_of_temporary_names_fits_those_of_killed_saves(tmp_path, monkeypatch):
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


def test_runs_started_in_the_same_millisecond_have_different_folders(config, monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000)
    with new_run(config) as one, new_run(config) as two:
        assert [one.name, two.name] == ["5", "6"]
        assert names(one) == [".lock", "config.ini"]
    assert names(two) == ["config.ini"]


def test_a_run_folder_that_cannot_be_created_is_refused(config, tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="can't write"), new_run(config):
        pass
    assert checkpoint.run_folder(config, "1").parent.parent.read_text() == "a file"
