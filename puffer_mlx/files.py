"""Files are published by rename: a reader sees the old file or the whole new one."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from puffer_mlx.errors import UserError


@contextlib.contextmanager
def publish(path: Path | str) -> Iterator[Path]:
    """Write a file under a temporary name, and rename it when the block ends without an error.

    Args:
        path: where the file is to be; missing folders are made.

    Yields:
        The temporary path, whose suffix is ``path``'s own.

    Raises:
        UserError: the folder can't be made or the file can't be written (no permission, disk full,
            ...). What was at ``path`` before is still there, and no temporary file is left.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(path.suffix, f".{path.stem}-", path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def publish_folder(path: Path | str) -> Iterator[Path]:
    """Fill a folder under a temporary name, and rename it when the block ends without an error.

    Args:
        path: where the folder is to be; missing folders above it are made. One that is there
            already is replaced.

    Yields:
        The temporary folder.

    Raises:
        UserError: as ``publish``.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        _sync(temporary)
        if path.is_dir():
            remove_folder(path)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder; whoever looks meanwhile sees all of it, or none."""
    doomed = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def publish_link(path: Path, target: str) -> None:
    """Make, or move, a symbolic link."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(target)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from None


def _sync(folder: Path) -> None:
    """Have the disk know the names in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"can't write {path}: {error.strerror or error}",
        "free some space, or choose a folder you can write to (--checkpoint-dir, --log-dir)",
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
