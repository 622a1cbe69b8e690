"""`checkpoint/folder.py`: one process trains a run; temporary files of killed ones are removed."""

import errno
import fcntl
import os
import subprocess
import sys
import time

import pytest

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint.folder import lock_run, new_run
from puffer_mlx.config import Base, Config
from puffer_mlx.errors import UserError
from puffer_mlx.system import files

HOLD = """
import sys, time
from pathlib import Path
from puffer_mlx.checkpoint.folder import lock_run
with lock_run(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def config(tmp_path):
    return Config("squared", base=Base(checkpoint_dir=str(tmp_path / "checkpoints")))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.processes
def test_a_run_is_locked_by_one_process_until_it_ends_or_is_killed(tmp_path):
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "locked\n"
            with pytest.raises(UserError, match="is in use by") as caught, lock_run(tmp_path):
                raise AssertionError("locked twice")
        finally:
            process.kill()
    assert str(process.pid) in str(caught.value) and str(tmp_path) in str(caught.value)
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


def test_a_lock_removes_the_temporary_files_of_killed_saves_alone(tmp_path, monkeypatch):
    kept = [".mine", ".my-settings", "0000000000000064", "config.ini", ".hidden-abcd1234"]
    videos = tmp_path / "videos"
    for name in [*kept, "videos"]:
        (tmp_path / name).mkdir()
    for name in f"{7:016d}.gif", ".mine.gif":
        (videos / name).write_bytes(b"")

    def stop(*_):
        raise SystemExit

    monkeypatch.setattr(os, "replace", stop)
    monkeypatch.setattr(os, "unlink", lambda _: None)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    with pytest.raises(SystemExit), files.publish(tmp_path / "config.ini"):
        pass
    with pytest.raises(SystemExit), files.publish(videos / f"{7:016d}.gif"):
        pass
    with pytest.raises(SystemExit), files.publish_folder(tmp_path / f"{64:016d}"):
        pass
    with pytest.raises(SystemExit):
        files.publish_link(tmp_path / "best", "0000000000000064")
    monkeypatch.undo()
    assert len(names(tmp_path)) == len(kept) + 5 and len(names(videos)) == 3
    with lock_run(tmp_path):
        assert names(tmp_path) == sorted([*kept, ".lock", "videos"])
        assert names(videos) == [".mine.gif", f"{7:016d}.gif"]


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
