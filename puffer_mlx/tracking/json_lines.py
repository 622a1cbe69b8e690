"""Records of a run as lines of JSON: ``log_dir/ENV/RUN_ID.jsonl``, one for each epoch.

Keys are PufferLib's: SPS, agent_steps, uptime, epoch, env/*, loss/*, perf/* (seconds in that
epoch), util/*. The last record may be of the evaluation after training: agent_steps and env/* only.
A number that isn't finite is ``null``: JSON has no NaN and no infinity.
"""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import short_path, write_hint
from puffer_mlx.system.json_text import is_finite, json_text, parse_record

HEARTBEAT = 1.0  # seconds between two heartbeats


class JsonLines:
    """Appends complete lines: one write for each record, undone if the disk takes only a part.

    Args:
        path: Path of the file; missing folders are created. An existing file is an error (two runs
            would mix) unless ``position`` is given.
        position: Bytes in a resumed run's log when its checkpoint was written. Later records are
            cut off, since the run writes them again, and so is a torn record.

    Attributes:
        note: A message about the state of the file; "" if there is nothing to report.

    Raises:
        UserError: The file can't be created, or (on a write) the disk is full.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        self.path = path
        self.note = ""
        self._touched = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if position is None or not path.exists():  # a removed log is created again
                self._file = open(path, "xb", buffering=0)  # noqa: SIM115
                return
            if path.is_symlink():  # this class creates no links, so another program did
                hint = "remove the link, or choose another folder (--log-dir)"
                raise UserError(f"the log {short_path(path)} is a link to {path.resolve()}", hint)
            self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
            self._resume(position)
        except OSError as error:
            raise self._error(error) from None

    def _create_again(self) -> None:
        """Create the log again: writes to a removed file would be lost."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "xb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._error(error) from None
        self._file.close()
        self._file = file
        line = f"warning: {short_path(self.path)} was removed; starting a new file"
        print(line, file=sys.stderr, flush=True)

    def _resume(self, position: int) -> None:
        """Cut off the records after a position, and a torn record."""
        size = self._file.seek(0, os.SEEK_END)
        whole = self._end_of_records(size)
        end = self._end_of_records(max(0, min(position, whole)))
        if whole < size:
            self.note = f"the last record of {short_path(self.path)} was torn; it was removed"
        elif end < position:
            self.note = (
                f"{short_path(self.path)} is shorter than when the run was saved; it lacks records"
            )
        self._file.truncate(end)
        self._file.seek(end)

    def _end_of_records(self, end: int) -> int:
        """Return the end of the last complete line before a position."""
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
        """Number of bytes written."""
        return self._file.tell()

    def write(self, logs: dict[str, float]) -> None:
        """Append a record; if the file was removed, print a warning and create it again."""
        data = (json_text(logs) + "\n").encode()
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._create_again()
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
        """Send a heartbeat by setting the file's time; at most one a second.

        A sweep stops a run whose log doesn't change, and an evaluation may take long.
        """
        if (now := time.monotonic()) - self._touched >= HEARTBEAT:
            self._touched = now
            with contextlib.suppress(OSError):  # training matters more
                os.utime(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _error(self, error: OSError) -> UserError:
        return UserError(
            f"can't write the log {short_path(self.path)}: {error.strerror or error}",
            write_hint(self.path, error, "--log-dir"),
        )


def log_path(config: Config, run_id: str) -> Path:
    """Return the path of a run's log."""
    return Path(config.base.log_dir) / config.slug / f"{run_id}.jsonl"


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log's epochs, without torn and foreign lines; [] without a log."""
    records: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            record = parse_record(line) or {}
            if "epoch" in record and is_finite(record.get("agent_steps")):
                records.append(record)
    return records
