"""Where a sweep's trials are kept: a journal file, or any other of Optuna's storages by its URL."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from puffer_mlx.errors import UserError

FORMS = "a file, sqlite:///FILE, postgresql://HOST/NAME, mysql://…, redis://HOST, grpc://HOST:PORT"


def open_storage(where: str, must_exist: bool = False) -> BaseStorage:
    """Open a storage.

    Args:
        where: the path of a journal file, which is made if it isn't there; or a URL.
        must_exist: a file that isn't there is an error.

    Raises:
        UserError: it can't be opened, or what it takes isn't installed.
    """
    with _opening(where):
        kind, colon, rest = where.partition("://")
        if not colon:
            return _journal(Path(where), must_exist)
        if kind == "redis":
            _need("redis", where)
            from optuna.storages.journal import JournalRedisBackend

            return JournalStorage(JournalRedisBackend(where))
        if kind == "grpc":
            _need("grpc", where, "grpcio protobuf")
            from optuna.storages import GrpcStorageProxy

            host, colon, port = rest.rstrip("/").partition(":")
            proxy = GrpcStorageProxy(host=host, port=int(port) if colon else 13000)
            proxy.wait_server_ready(timeout=20)
            return proxy
        return RDBStorage(where)


def _journal(path: Path, must_exist: bool) -> BaseStorage:
    if must_exist and not path.is_file():
        raise UserError(
            f"there is no sweep's journal {path}", "was it moved? --storage says where it is"
        )
    if path.is_dir():
        raise UserError(f"{path} is a folder", f"name a file in it: {path / 'journal.log'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path)))


def _need(module: str, where: str, packages: str = "") -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{where} needs a package", f"pip install {packages or module}")


@contextlib.contextmanager
def _opening(where: str) -> Iterator[None]:
    """Report whatever a block raises that opens a storage: anything may be in a file.

    Raises:
        UserError: instead.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise _refused(where, error) from None


@contextlib.contextmanager
def reported(where: str) -> Iterator[None]:
    """Report what a storage raises in a block: it is locked, or gone.

    Raises:
        UserError: instead.
    """
    try:
        yield
    except optuna.exceptions.StorageInternalError as error:
        raise _refused(where, error) from None
    except Exception as error:
        of_storage = type(error).__module__.startswith(("sqlalchemy", "grpc", "redis"))
        of_file = isinstance(error, OSError) and str(error.filename).startswith(where)
        if not (of_storage or of_file):
            raise
        raise _refused(where, error) from None


def _refused(where: str, error: Exception) -> UserError:
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    said = lines[0] if lines else type(cause).__name__
    if isinstance(cause, ModuleNotFoundError):
        return UserError(f"the storage {where} needs {cause.name}", f"pip install {cause.name}")
    if "locked" in said.lower():
        hint = "another program holds it: end that, or keep the sweep in a file of its own"
    else:
        hint = f"is it there, and may you write to it? A storage is {FORMS}"
    return UserError(f"the storage {where} can't be used: {said[:300]}", hint)
