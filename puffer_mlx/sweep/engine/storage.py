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
from puffer_mlx.sweep.engine.study import quiet
from puffer_mlx.system import verbosity

TABLES_TIMEOUT = 10.0  # seconds for another process to create a database's tables
FIRST = b'{"op_code":'  # first bytes of a journal
OF_STORAGES = str(Path(optuna.storages.__file__).parent)
FORMS = "a file, sqlite:///FILE, postgresql://HOST/NAME, mysql://…, redis://HOST, grpc://HOST:PORT"


def open_storage(where: str, must_exist: bool = False) -> BaseStorage:
    """Open a storage.

    Args:
        where: Path of a journal file, created if missing, or a URL.
        must_exist: Raise an error if the journal file is missing.

    Raises:
        UserError: If the storage can't be opened, or a package that it needs isn't installed.
    """
    with reported(where, opens=True), quiet():
        kind, colon, rest = where.partition("://")
        if not colon:
            return _journal(Path(where), must_exist)
        if kind == "redis":
            from optuna.storages.journal import JournalRedisBackend

            return JournalStorage(JournalRedisBackend(where))
        if kind == "grpc":
            from optuna.storages import GrpcStorageProxy

            host, colon, port = rest.rstrip("/").partition(":")
            proxy = GrpcStorageProxy(host=host, port=int(port) if colon else 13000)
            proxy.wait_server_ready(timeout=20)
            return proxy
        return _database(where)


def _database(where: str) -> BaseStorage:
    """Open a database. Retries while several new processes create the tables at the same time."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import DatabaseError, IntegrityError

    url = make_url(where)
    in_memory = ":memory:" in (url.database or ":memory:") or "memory" in url.query.values()
    if in_memory and url.get_backend_name() == "sqlite":
        raise UserError(
            f"the storage {where} keeps nothing: it is a database in memory",
            "name a file: sqlite:///FILE",
        )
    until = time.monotonic() + TABLES_TIMEOUT
    while True:
        try:
            return RDBStorage(where)
        except DatabaseError as error:
            exists = isinstance(error, IntegrityError) or "already exists" in str(error)
            if not exists or time.monotonic() > until:
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
        self._own_lock = JournalFileSymlinkLock(str(path))
        super().__init__(str(path), self._own_lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records after the last complete one."""
        with open(self._path, "rb") as file:
            file.seek(max(0, self._path.stat().st_size - 1))
            whole = file.read(1) in (b"", b"\n")
        if not whole:
            self.mend()
        super().append_logs(logs)

    def mend(self) -> None:
        """Cut off an incomplete last line, move it to a separate file, and print a note.

        Raises:
            UserError: If the file isn't a journal.
        """
        if not _torn(self._path.read_bytes()):
            return
        kept = Path(f"{self._path}.torn-{time.time_ns()}")
        self._own_lock.acquire()  # another process may be writing the line
        try:
            data = self._path.read_bytes()
            if not (torn := _torn(data)):
                return
            begun = torn[: len(FIRST)] == FIRST[: len(torn)] or not torn.strip(b"\0")
            if len(torn) == len(data) and not begun:
                raise _no_record(self._path, 1)
            with open(kept, "xb") as file:  # never follows a link
                file.write(torn)
            os.truncate(self._path, len(data) - len(torn))
        finally:
            self._own_lock.release()
        verbosity.note(f"the last record of {self._path} was torn; it was moved to {kept}")


def _torn(data: bytes) -> bytes:
    """Return the bytes after a journal's last complete record."""
    end = data.rfind(b"\n") + 1
    begin = data.rfind(b"\n", 0, max(0, end - 1)) + 1
    return data[end if _is_record(data[begin:end]) else begin :]


def _is_record(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "op_code" in record


def _no_record(path: Path, number: int) -> UserError:
    """Return the error for a line, counted from 1, that isn't a journal record."""
    hint = f"expected the journal of a sweep. A storage is {FORMS}"
    if number > 1:
        before = f"head -n {number - 1} {path} > OTHER"
        hint = f"the lines before it are intact: {before}; then --storage OTHER"
    return UserError(
        f"the storage {path} can't be used: line {number} isn't a journal record", hint
    )


def _journal(path: Path, must_exist: bool) -> BaseStorage:
    if must_exist and not path.is_file():
        hint = "if it was moved, name it with --storage"
        raise UserError(f"no journal of a sweep at {path}", hint)
    if path.is_dir():
        raise UserError(f"{path} is a folder", f"name a file in it: {path / 'journal.log'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(path)
    try:
        opened = JournalStorage(journal)
    except Exception:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not _is_record(line):
                    raise _no_record(path, number) from None
        raise
    journal.mend()
    return opened


@contextlib.contextmanager
def reported(where: str, opens: bool = False) -> Iterator[None]:
    """Convert exceptions of a storage in a block to a ``UserError``: locked, damaged or missing.

    Args:
        where: Path or URL of the storage.
        opens: True if the block opens the storage; then every exception is converted.

    Raises:
        UserError: If the storage raised an exception.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not (opens or _is_of_storage(error, where)):
            raise
        raise _refused(where, error) from None


def _is_of_storage(error: Exception, where: str) -> bool:
    if isinstance(error, ValueError):  # damaged content
        frames = traceback.extract_tb(error.__traceback__)
        return any(frame.filename.startswith(OF_STORAGES) for frame in frames)
    if isinstance(error, OSError):
        return str(error.filename).startswith(where)
    of_others = type(error).__module__.startswith(("sqlalchemy", "grpc", "redis"))
    return of_others or isinstance(error, optuna.exceptions.StorageInternalError)


def _refused(where: str, error: Exception) -> UserError:
    cause = error.__cause__ or error
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    if isinstance(cause, ModuleNotFoundError) and (name := cause.name):
        package = "grpcio protobuf" if name == "grpc" else name
        return UserError(f"the storage {where} needs {name}", f"pip install {package}")
    if "locked" in reason.lower():
        hint = "another program locks it; end that program, or use a separate file"
    else:
        hint = f"check that it exists and is writable. A storage is {FORMS}"
    return UserError(f"the storage {where} can't be used: {reason[:300]}", hint)
