"""Storage of a sweep's trials: a journal file, or another Optuna storage by URL."""

import contextlib
import json
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.engine.study import ignore_warnings
from puffer_mlx.system import verbosity

TABLES_TIMEOUT = 10.0  # seconds to wait while other processes create a database's tables
RECORD_START = b'{"op_code":'  # first bytes of each record in a journal
STORAGES_FOLDER = str(Path(optuna.storages.__file__).parent)
STORAGE_EXAMPLES = (
    "a file, sqlite:///FILE, postgresql://HOST/NAME, mysql://…, redis://HOST, grpc://HOST:PORT"
)


def open_storage(location: str, must_exist: bool = False) -> BaseStorage:
    """Open the storage of a sweep's trials.

    Args:
        location: Path of a journal file, created if missing, or a URL.
        must_exist: Raise an error if the journal file is missing.

    Raises:
        UserError: If the storage can't be opened, or a package that it needs isn't installed.
    """
    with storage_errors(location, opens=True), ignore_warnings():
        kind, colon, address = location.partition("://")
        if not colon:
            return _open_journal(Path(location), must_exist)
        if kind == "redis":
            from optuna.storages.journal import JournalRedisBackend

            return JournalStorage(JournalRedisBackend(location))
        if kind == "grpc":
            from optuna.storages import GrpcStorageProxy

            host, colon, port = address.rstrip("/").partition(":")
            proxy = GrpcStorageProxy(host=host, port=int(port) if colon else 13000)
            proxy.wait_server_ready(timeout=20)
            return proxy
        return _open_database(location)


def _open_database(location: str) -> BaseStorage:
    """Open the database that stores a sweep's trials.

    Opening fails while another new process creates the tables, and is then retried.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import DatabaseError, IntegrityError

    url = make_url(location)
    database = url.database or ":memory:"  # without a file, SQLite's databases are in memory
    in_memory = ":memory:" in database or "memory" in url.query.values()
    if in_memory and url.get_backend_name() == "sqlite":
        raise UserError(
            f"the storage {location} is a database in memory, which doesn't outlive the sweep",
            "use a file: sqlite:///FILE",
        )
    deadline = time.monotonic() + TABLES_TIMEOUT
    while True:
        try:
            return RDBStorage(location)
        except DatabaseError as error:
            exists = isinstance(error, IntegrityError) or "already exists" in str(error)
            if not exists or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Journal(JournalFileBackend):
    """Optuna's journal file, with one JSON record per line.

    A full disk or a power failure can leave an incomplete last line. It is cut off, because a
    record appended to it would make the journal unreadable.

    Args:
        path: Path of the file, created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_lock = JournalFileSymlinkLock(str(path))
        super().__init__(str(path), self._file_lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records to the journal, after cutting off an incomplete last line."""
        with open(self._path, "rb") as file:
            file.seek(max(0, self._path.stat().st_size - 1))
            complete = file.read(1) in (b"", b"\n")
        if not complete:
            self.repair()
        super().append_logs(logs)

    def repair(self) -> None:
        """Move an incomplete last line of the journal to a separate file, and print a note.

        Raises:
            UserError: If the file isn't a journal.
        """
        if not _incomplete_end(self._path.read_bytes()):
            return
        moved_to = Path(f"{self._path}.torn-{time.time_ns()}")
        self._file_lock.acquire()  # another process may be writing the line
        try:
            data = self._path.read_bytes()
            if not (end := _incomplete_end(data)):
                return
            is_zeros = not end.strip(b"\0")  # as after a power failure
            is_record = RECORD_START.startswith(end[: len(RECORD_START)])
            if len(end) == len(data) and not is_record and not is_zeros:
                raise _line_error(self._path, 1)
            with open(moved_to, "xb") as file:  # never follows a link
                file.write(end)
            os.truncate(self._path, len(data) - len(end))
        finally:
            self._file_lock.release()
        verbosity.note(
            f"the last record of {self._path} was incomplete; it was moved to {moved_to}"
        )


def _incomplete_end(data: bytes) -> bytes:
    """Return the bytes after the last complete record of a journal."""
    line_end = data.rfind(b"\n") + 1  # of the last line that has an end
    line_begin = data.rfind(b"\n", 0, max(0, line_end - 1)) + 1
    is_complete = _is_record(data[line_begin:line_end])
    return data[line_end:] if is_complete else data[line_begin:]


def _is_record(line: bytes) -> bool:
    """Return True if a line is a complete journal record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "op_code" in record


def _line_error(path: Path, number: int) -> UserError:
    """Return the error for a line of a file, counted from 1, that isn't a journal record."""
    hint = f"expected the journal of a sweep. A storage is {STORAGE_EXAMPLES}"
    if number > 1:
        command = f"head -n {number - 1} {path} > OTHER"
        hint = f"the lines before it are intact: {command}; then --storage OTHER"
    return UserError(
        f"the storage {path} can't be used: line {number} isn't a journal record", hint
    )


def _open_journal(path: Path, must_exist: bool) -> BaseStorage:
    """Open a journal file of trials, and repair an incomplete last line."""
    if must_exist and not path.is_file():
        hint = "if it was moved, give its path with --storage"
        raise UserError(f"no journal of a sweep at {path}", hint)
    if path.is_dir():
        raise UserError(f"{path} is a folder", f"use a file in it: {path / 'journal.log'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path)
    try:
        opened = JournalStorage(journal)
    except Exception:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not _is_record(line):
                    raise _line_error(path, number) from None
        raise
    journal.repair()
    return opened


@contextlib.contextmanager
def storage_errors(location: str, opens: bool = False) -> Iterator[None]:
    """Convert exceptions of a storage in a block to a ``UserError``: locked, damaged or missing.

    Args:
        location: Path or URL of the storage.
        opens: True if the block opens the storage; then every exception is converted.

    Raises:
        UserError: If the storage raised an exception.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not (opens or _comes_from_storage(error, location)):
            raise
        raise _storage_error(location, error) from None


def _comes_from_storage(error: Exception, location: str) -> bool:
    """Return True if a storage raised an exception, False if other code did."""
    if isinstance(error, ValueError):  # damaged content
        frames = traceback.extract_tb(error.__traceback__)
        return any(frame.filename.startswith(STORAGES_FOLDER) for frame in frames)
    if isinstance(error, OSError):
        return str(error.filename).startswith(location)
    is_library_error = type(error).__module__.startswith(("sqlalchemy", "grpc", "redis"))
    return is_library_error or isinstance(error, optuna.exceptions.StorageInternalError)


def _storage_error(location: str, error: Exception) -> UserError:
    """Return the error for the user from an exception that a storage raised."""
    cause = error.__cause__ or error
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    if isinstance(cause, ModuleNotFoundError) and (name := cause.name):
        package = "grpcio protobuf" if name == "grpc" else name
        return UserError(f"the storage {location} needs {name}", f"pip install {package}")
    if "locked" in reason.lower():
        hint = "another program has locked it; end that program, or use another file"
    else:
        hint = f"check that it exists and is writable. A storage is {STORAGE_EXAMPLES}"
    return UserError(f"the storage {location} can't be used: {reason[:300]}", hint)
