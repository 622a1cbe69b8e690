"""Records of a run as lines of JSON: ``log_dir/ENV/RUN_ID.jsonl``, one for each epoch.

Keys are upstream's: SPS, agent_steps, uptime, epoch, env/*, loss/*, perf/* (seconds in that
epoch), util/*. The last record may be of the evaluation after training: agent_steps and env/* only.
What isn't a finite number is ``null``: JSON has no NaN and no infinity.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import shown, write_hint
from puffer_mlx.system.json_text import json_text

TOUCHED = 1.0  # seconds between two signs of life


class JsonLines:
    """Appends whole lines: one write for each record, undone if the disk takes only a part of it.

    Args:
        path: the file; missing folders are made. An existing file is an error (two runs would mix)
            unless ``position`` is given.
        position: where a resumed run's log was when its checkpoint was written; what came after
            that is cut off, since it will come again, and so is a record that a kill left torn.

    Attributes:
        note: what a person should know of how the file was found; empty if nothing.

    Raises:
        UserError: the file can't be made, or (on a write) the disk is full.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        self.path, self.note = path, ""
        self._touched = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if position is None or not path.exists():  # a log that was removed begins anew
                self._file = open(path, "xb", buffering=0)  # noqa: SIM115
                return
            if path.is_symlink():  # no log of ours; somebody's files may lead anywhere
                hint = "remove the link, or choose another folder (--log-dir)"
                raise UserError(f"the log {shown(path)} is a link to {path.resolve()}", hint)
            self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
            self._go_on(position)
        except OSError as error:
            raise self._error(error) from None

    def _begin_anew(self) -> None:
        """What would be written goes nowhere: nobody finds the file any more."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "xb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._error(error) from None
        self._file.close()
        self._file = file
        line = f"the log {shown(self.path)} was removed; it begins anew here"
        print(line, file=sys.stderr, flush=True)

    def _go_on(self, position: int) -> None:
        """Cut off what comes after a position, and what is no whole record."""
        size = self._file.seek(0, os.SEEK_END)
        whole = self._end_of_records(size)
        end = self._end_of_records(max(0, min(position, whole)))
        if whole < size:
            self.note = f"the last record of {shown(self.path)} was torn; it was removed"
        elif end < position:
            self.note = (
                f"{shown(self.path)} is shorter than when the run was saved; it lacks records"
            )
        self._file.truncate(end)
        self._file.seek(end)

    def _end_of_records(self, end: int) -> int:
        """Where the last whole line before a position ends."""
        while end:
            begin = max(0, end - 65_536)
            self._file.seek(begin)
            newline = self._file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0

    @property
    def position(self) -> int:
        """Bytes written."""
        return self._file.tell()

    def write(self, logs: dict[str, float]) -> None:
        """Append a record; to a new file, and a line says so, if this one was removed meanwhile."""
        data = (json_text(logs) + "\n").encode()
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._begin_anew()
        end = self._file.tell()
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(28, "no space left for a whole record")
        except OSError as error:
            os.ftruncate(self._file.fileno(), end)
            self._file.seek(end)
            raise self._error(error) from None

    def touch(self) -> None:
        """Say that the run goes on, though it has nothing to record yet: by the file's time.

        A sweep ends a run whose log nothing happens to, and an evaluation may take long. Costs
        nothing if it is called again within a second.
        """
        if (now := time.monotonic()) - self._touched >= TOUCHED:
            self._touched = now
            with contextlib.suppress(OSError):  # training matters more
                os.utime(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _error(self, error: OSError) -> UserError:
        return UserError(
            f"can't write the log {shown(self.path)}: {error.strerror or error}",
            write_hint(self.path, error, "--log-dir"),
        )


def log_path(config: Config, run_id: str) -> Path:
    """Where a run's records go."""
    return Path(config.base.log_dir) / config.slug / f"{run_id}.jsonl"
