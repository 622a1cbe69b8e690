"""Files are published by rename: a reader sees the old file or the complete new one."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from puffer_mlx.errors import UserError

NO_SPACE = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


@contextlib.contextmanager
def publish(path: Path | str, named: bool = False) -> Iterator[Path]:
    """Write a file under a temporary name, and rename it when the block ends without an error.

    Args:
        path: The file; missing folders are made.
        named: True if the user named this file: then only a regular file is replaced. Otherwise
            links are replaced, too: a run's folder may come from another user, and its links may
            lead anywhere.

    Yields:
        The temporary path, with the suffix of ``path``.

    Raises:
        UserError: The folder can't be made or the file can't be written (no permission, disk full,
            ...). The old file is unchanged, and no temporary file is left.
    """
    if named:
        _refuse_special(Path(path))
    with _replacing(Path(path), folder=False) as temporary:
        yield temporary


def _refuse_special(path: Path) -> None:
    """Refuse an output file that exists and isn't a regular file.

    Raises:
        UserError: The path is a link, a folder, a device or a pipe.
    """
    kind = "a device or a pipe"
    with _reporting(path):
        if path.is_symlink():
            kind = f"a link to {path.readlink()}"
        elif path.is_dir():
            kind = "a folder"
        elif path.is_file() or not path.exists():
            return
    message = f"can't write {shown(path)}: it is {kind}, not a regular file"
    raise UserError(message, "name a new file; JSON goes to standard output with --json -")


def check_writable(name: str | Path) -> Path:
    """Return the absolute path of a file that will be written later.

    The path is absolute because an environment may change the working directory.

    Raises:
        UserError: The file couldn't be written now.
    """
    path = Path(os.path.abspath(name))
    _refuse_special(path)
    with _reporting(path):
        folder = next(each for each in path.parents if each.exists())
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path


@contextlib.contextmanager
def publish_folder(path: Path | str) -> Iterator[Path]:
    """Fill a folder under a temporary name, and rename it when the block ends without an error.

    Args:
        path: The folder; missing folders above it are made. An existing folder is replaced.

    Yields:
        The temporary folder.

    Raises:
        UserError: As in ``publish``.
    """
    with _replacing(Path(path), folder=True) as temporary:
        yield temporary
    with _reporting(Path(path)):
        sync(Path(path).parent)


@contextlib.contextmanager
def _replacing(path: Path, folder: bool) -> Iterator[Path]:
    """Yield a temporary file or folder, and rename it to ``path`` after the block."""
    temporary = None
    try:
        with _reporting(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if folder:
                temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
            else:
                handle, name = tempfile.mkstemp(path.suffix, f".{path.stem}-", path.parent)
                os.close(handle)
                temporary = Path(name)
            yield temporary
            sync(temporary)
            os.chmod(temporary, (0o777 if folder else 0o666) & ~_umask())
            if folder and (path.is_dir() or path.is_symlink()):
                remove_folder(path)
            os.replace(temporary, path)
    finally:
        if temporary is not None and folder:
            shutil.rmtree(temporary, ignore_errors=True)
        elif temporary is not None:
            temporary.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder in one step: a reader sees all of it, or nothing.

    If the path is a link to a folder, only the link is removed.
    """
    if path.is_symlink():
        path.unlink()
        return
    doomed = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def publish_link(path: Path, target: str) -> None:
    """Make or move a symbolic link."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with _reporting(path):
        temporary.symlink_to(target)
        os.replace(temporary, path)


def open_file(path: Path | str) -> BinaryIO:
    """Open a file for reading bytes.

    Raises:
        OSError: The file can't be opened or isn't a regular one: reading a FIFO may block forever,
            and a device may be endless.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a file, but a pipe or a device", str(path))


def read_text(path: Path, errors: str = "strict", most: int = 10_000_000) -> str:
    """Return the text of a file of at most ``most`` bytes.

    Args:
        path: The file.
        errors: Handling of decoding errors, as in ``bytes.decode``.
        most: Largest size in bytes; files written by people are smaller.

    Raises:
        OSError: The file can't be read or is larger.
        UnicodeDecodeError: The file isn't UTF-8.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size} bytes, expected a text of at most {most}")
        return file.read().decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")


@contextlib.contextmanager
def lock_folder(folder: Path, what: str) -> Iterator[bool]:
    """Lock a folder for this process during a block.

    The lock is the kernel's, on a file ``.lock`` in the folder. It ends with the process, even if
    that is killed.

    Args:
        folder: Existing folder.
        what: Kind of folder, for messages.

    Yields:
        True if the lock is held, False on file systems without locks (some network file systems).

    Raises:
        UserError: Another process holds the lock, or the folder can't be written to.
    """
    path = folder / ".lock"
    with contextlib.ExitStack() as stack:
        try:
            if path.is_symlink():  # not our lock; may lead to another user's file
                path.unlink()
            handle = stack.enter_context(_locked_file(path, 0o666, fcntl.LOCK_NB))
            if handle is not None:
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
        except BlockingIOError as error:
            owner = f" ({error})" if str(error) else ""
            message = f"{what} {folder} is in use by another process{owner}"
            raise UserError(message, "wait until it has ended, or end it") from None
        except OSError as error:
            raise _unwritable(path, error) from None
        yield handle is not None


def is_locked(folder: Path) -> bool:
    """Return True if a process holds the lock of a folder (``lock_folder``)."""
    try:
        with open(folder / ".lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Run a block while no other process runs one for the same file; wait for the others.

    The lock is the kernel's, on a temporary file. It ends with the process, even if that is killed.
    Without locks, or if the file can't be made, the block runs at once.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(_locked_file(path, 0o600))
        yield


@contextlib.contextmanager
def _locked_file(path: Path, mode: int, how: int = 0) -> Iterator[int | None]:
    """Yield the handle of a locked file, which is removed after the block; None without locks.

    Args:
        path: The file.
        mode: Permissions of a new file.
        how: ``LOCK_NB`` to fail instead of waiting.

    Raises:
        BlockingIOError: Another process holds the lock. The error's text is the contents of the
            file.
        OSError: The file can't be made.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        held = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | how)
        except BlockingIOError:
            owner = os.read(handle, 20).decode(errors="replace")
            os.close(handle)
            raise BlockingIOError(owner) from None
        except OSError:  # file system without locks
            held = False
        except BaseException:  # Ctrl-C while waiting
            os.close(handle)
            raise
        if not held or _is_same_file(path, handle):  # else its holder has removed it
            break
        os.close(handle)
    try:
        yield handle if held else None
    finally:
        path.unlink(missing_ok=True)  # before unlocking, so that waiting processes notice
        os.close(handle)


def _is_same_file(path: Path, handle: int) -> bool:
    """Return True if a path is still the file that was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def reading(path: Path | str, hint: str = "check the path, and who may read it") -> Iterator[None]:
    """Report OSErrors of a block that reads a path.

    Raises:
        UserError: In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        message = f"can't read {shown(path)}: {error.strerror or error}"
        raise UserError(message, hint) from None


def shown(path: Path | str) -> str:
    """Return a path for a message, relative if possible, without the middle of a very long one."""
    text = relative(Path(path))
    return text if len(text) < 300 else f"{text[:100]}…{text[-100:]}"


def relative(path: Path) -> str:
    """Return a path for a message, relative if it is inside the working directory."""
    with contextlib.suppress(OSError, ValueError):  # the directory was removed or replaced
        return str(path.relative_to(Path.cwd()))
    return str(path)


def sync(path: Path) -> None:
    """Write a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Report OSErrors of a block that writes to a path as a UserError."""
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error) from None


def write_hint(path: Path, error: OSError, options: str) -> str:
    """Return the hint for a file that couldn't be written.

    Args:
        path: The file.
        error: The raised error.
        options: Options that choose another folder.
    """
    for folder in (path, *path.parents):
        if os.path.islink(folder) and not os.path.exists(folder):  # unlike Path, raises nothing
            return f"mount its disk: {folder} is a link to {folder.readlink()}, which isn't there"
    space = "free some space, or " if error.errno in NO_SPACE else ""
    return f"{space}choose a folder you can write to ({options})"


def _unwritable(path: Path, error: OSError) -> UserError:
    options = "--checkpoint-dir, --log-dir, or the option that names this file"
    message = f"can't write {shown(path)}: {error.strerror or error}"
    return UserError(message, write_hint(path, error, options))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def shipped(name: str) -> Path:
    """Return the folder ``configs`` or ``envs``, inside the installed package or beside it."""
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
