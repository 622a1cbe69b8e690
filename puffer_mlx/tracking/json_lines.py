"""Write and read a run's log, ``log_dir/ENV/RUN_ID.jsonl``: one line of JSON (a record) per epoch.

Keys are PufferLib's: SPS, agent_steps, uptime, epoch, env/*, loss/*, perf/* (seconds in that
epoch), util/*. The last record may be the result of the evaluation after training, with agent_steps
and env/* only. A number that isn't finite is ``null``, because JSON has no NaN and no infinity.
"""

import contextlib
import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import short_path, write_hint
from puffer_mlx.system.json_text import is_finite, json_text, parse_record

HEARTBEAT_INTERVAL = 1.0  # seconds


class LogFile:
    """A run's log file, to which records are appended as complete lines.

    Each record is one write, which is undone if the disk is full.

    Args:
        path: Path of the file; missing folders are created. An existing file is an error (two runs
            would mix) unless ``position`` is given.
        position: For a resumed run, the size of its log in bytes when the checkpoint was written.
            Records after this position are removed, because the run writes them again. An
            incomplete record at the end is removed too.

    Attributes:
        note: Message for the user about the resumed file, or "".

    Raises:
        UserError: The file can't be created, or (on a write) the disk is full.
    """

    def __init__(self, path: Path, position: int | None = None) -> None:
        self.path = path
        self.note = ""
        self._last_heartbeat = 0.0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if position is None or not path.exists():  # a resumed run's log may have been removed
                self._file = open(path, "xb", buffering=0)  # noqa: SIM115
                return
            if path.is_symlink():  # truncating would damage a file that isn't this run's log
                hint = "remove the link, or choose another folder (--log-dir)"
                raise UserError(f"the log {short_path(path)} is a link to {path.resolve()}", hint)
            self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
            self._resume(position)
        except OSError as error:
            raise self._error(error) from None

    def _recreate(self) -> None:
        """Create the log file again after another process removed it, and print a warning."""
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
        """Remove the records after a position (in bytes), and an incomplete last record."""
        size = self._file.seek(0, os.SEEK_END)
        complete_size = self._end_of_records(size)
        end = self._end_of_records(max(0, min(position, complete_size)))
        if complete_size < size:
            self.note = f"the last record of {short_path(self.path)} was incomplete and was removed"
        elif end < position:
            self.note = (
                f"{short_path(self.path)} lacks records: it is shorter than when the run was saved"
            )
        self._file.truncate(end)
        self._file.seek(end)

    def _end_of_records(self, end: int) -> int:
        """Return the end of the last complete line before a position, both in bytes."""
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
        """Size of the log so far, in bytes."""
        return self._file.tell()

    def write(self, record: dict[str, float]) -> None:
        """Append a record to the log. If the file was removed, recreate it with a warning."""
        data = (json_text(record) + "\n").encode()
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._recreate()
        end = self._file.tell()
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, "no space left for a complete record")
        except OSError as error:
            os.ftruncate(self._file.fileno(), end)
            self._file.seek(end)
            raise self._error(error) from None

    def touch(self) -> None:
        """Update the log's modification time as a heartbeat, at most once a second.

        A sweep stops a run whose log doesn't change for long. Called during an evaluation, which
        writes no records.
        """
        if (now := time.monotonic()) - self._last_heartbeat >= HEARTBEAT_INTERVAL:
            self._last_heartbeat = now
            with contextlib.suppress(OSError):  # a missed heartbeat shouldn't end the training
                os.utime(self._file.fileno())

    def close(self) -> None:
        """Close the log file."""
        self._file.close()

    def _error(self, error: OSError) -> UserError:
        return UserError(
            f"can't write the log {short_path(self.path)}: {error.strerror or error}",
            write_hint(self.path, error, "--log-dir"),
        )


def log_path(config: Config, run_id: str) -> Path:
    """Return the path of a run's log file."""
    return Path(config.base.log_dir) / config.slug / f"{run_id}.jsonl"


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the epochs' records from a log. Skips the evaluation's record and invalid lines.

    Returns:
        The records, metrics by name; [] if there is no log.
    """
    records: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            record = parse_record(line) or {}
            if "epoch" in record and is_finite(record.get("agent_steps")):
                records.append(record)
    return records
