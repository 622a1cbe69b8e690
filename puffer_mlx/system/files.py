"""Write, read and lock files safely.

Files and folders are written under a temporary name and renamed: a reader sees either the old or
the complete new one. Errors of the operating system become UserErrors.
"""

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
def publish(path: Path | str, user_named: bool = False) -> Iterator[Path]:
    """Write a file under a temporary name, and rename it when the block ends without an error.

    Args:
        path: The file; missing folders are created.
        user_named: True if the user named this file: then only a regular file is replaced.
            Otherwise links are replaced, too: a run's folder may come from another user, and its
            links may point anywhere.

    Yields:
        The temporary path, with the suffix of ``path``.

    Raises:
        UserError: The folder can't be created or the file can't be written (no permission, disk
            full, ...). The old file is unchanged, and no temporary file remains.
    """
    if user_named:
        _check_regular_file(Path(path))
    with _temporary_path(Path(path), folder=False) as temporary:
        yield temporary


def _check_regular_file(path: Path) -> None:
    """Raise an error if an output path exists and isn't a regular file.

    Raises:
        UserError: The path is a link, a folder, a device or a pipe.
    """
    with _report_write_errors(path):
        if path.is_symlink():
            kind = f"a link to {path.readlink()}"
        elif path.is_dir():
            kind = "a folder"
        elif path.is_file() or not path.exists():
            return
        else:
            kind = "a device or a pipe"
    message = f"can't write {short_path(path)}: it is {kind}, not a regular file"
    raise UserError(message, "name a new file; JSON goes to standard output with --json -")


def check_writable(name: str | Path) -> Path:
    """Check that a file can be written later. Returns its absolute path.

    The path is absolute because an environment may change the working directory.

    Raises:
        UserError: The file can't be written.
    """
    path = Path(os.path.abspath(name))
    _check_regular_file(path)
    with _report_write_errors(path):
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
        path: The folder; missing parents are created. An existing folder is replaced.

    Yields:
        The temporary folder.

    Raises:
        UserError: The folder can't be created or written.
    """
    with _temporary_path(Path(path), folder=True) as temporary:
        yield temporary
    with _report_write_errors(Path(path)):
        sync(Path(path).parent)


@contextlib.contextmanager
def _temporary_path(path: Path, folder: bool) -> Iterator[Path]:
    """Yield a temporary file or folder to write, and rename it to ``path`` after the block."""
    temporary = None
    try:
        with _report_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if folder:
                temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
            else:
                descriptor, name = tempfile.mkstemp(path.suffix, f".{path.stem}-", path.parent)
                os.close(descriptor)
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
    """Remove a folder atomically: it is renamed before its files are deleted.

    If the path is a link to a folder, only the link is removed.
    """
    if path.is_symlink():
        path.unlink()
        return
    removed_folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    os.replace(path, removed_folder)
    shutil.rmtree(removed_folder)


def publish_link(path: Path, target: str) -> None:
    """Create or replace a symbolic link atomically.

    Args:
        path: The link.
        target: Path that it points to.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with _report_write_errors(path):
        temporary.symlink_to(target)
        os.replace(temporary, path)


def open_file(path: Path | str) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises:
        OSError: The file can't be opened or isn't a regular file: reading a FIFO may block forever,
            and a device may be endless.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a file, but a pipe or a device", str(path))


def read_text(path: Path, errors: str = "strict", max_bytes: int = 10_000_000) -> str:
    """Read a UTF-8 text file of limited size. Returns its text with Unix line ends.

    Args:
        path: The file.
        errors: Handling of decoding errors, as in ``bytes.decode``.
        max_bytes: Largest accepted size in bytes.

    Raises:
        OSError: The file can't be read or is larger.
        UnicodeDecodeError: The file isn't UTF-8.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size} bytes, expected a text of at most {max_bytes}")
        return file.read().decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")


@contextlib.contextmanager
def lock_folder(folder: Path, what: str) -> Iterator[bool]:
    """Lock a folder for this process during a block.

    The kernel locks the file ``.lock`` in the folder, and releases it when the process ends, even
    if the process is killed.

    Args:
        folder: Existing folder.
        what: What the folder is, for messages: ``the run``.

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
            descriptor = stack.enter_context(_locked_file(path, 0o666, fcntl.LOCK_NB))
            if descriptor is not None:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
        except BlockingIOError as error:
            owner = f" ({error})" if str(error) else ""
            message = f"{what} {folder} is in use by another process{owner}"
            raise UserError(message, "wait until it has ended, or end it") from None
        except OSError as error:
            raise _write_error(path, error) from None
        yield descriptor is not None


def is_locked(folder: Path) -> bool:
    """Return True if a process has locked a folder with ``lock_folder``."""
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
    """Run a block while holding the lock of a file; wait while other processes hold it.

    The kernel releases the lock when the process ends, even if the process is killed. If the file
    system has no locks or the file can't be created, the block runs without a lock.

    Args:
        path: Lock file, created here and removed afterwards.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(_locked_file(path, 0o600))
        yield


@contextlib.contextmanager
def _locked_file(path: Path, mode: int, flag: int = 0) -> Iterator[int | None]:
    """Create and lock a file during a block, and remove it afterwards.

    Args:
        path: The file.
        mode: Permissions of a new file.
        flag: ``fcntl.LOCK_NB`` to fail instead of waiting for another process; 0 waits.

    Yields:
        The file's descriptor, or None on a file system without locks.

    Raises:
        BlockingIOError: Another process holds the lock. The error's text is the file's contents.
        OSError: The file can't be created.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
        held = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | flag)
        except BlockingIOError:
            owner = os.read(descriptor, 20).decode(errors="replace")
            os.close(descriptor)
            raise BlockingIOError(owner) from None
        except OSError:  # file system without locks
            held = False
        except BaseException:  # Ctrl-C while waiting
            os.close(descriptor)
            raise
        if not held or _is_same_file(path, descriptor):
            break
        os.close(descriptor)  # the previous holder has removed the file: lock a new one
    try:
        yield descriptor if held else None
    finally:
        path.unlink(missing_ok=True)  # before unlocking, so that waiting processes notice
        os.close(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Return True if a path still names an open file, False if it was removed or replaced."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def report_read_errors(
    path: Path | str, hint: str = "check the path, and who may read it"
) -> Iterator[None]:
    """Turn OSErrors of a block that reads a file into UserErrors.

    Args:
        path: The file, named in the message.
        hint: Hint of the UserError.

    Raises:
        UserError: The block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        message = f"can't read {short_path(path)}: {error.strerror or error}"
        raise UserError(message, hint) from None


def short_path(path: Path | str) -> str:
    """Return a path for a message: relative if possible, and without the middle if very long."""
    text = relative(Path(path))
    return text if len(text) < 300 else f"{text[:100]}…{text[-100:]}"


def relative(path: Path) -> str:
    """Return a path for a message: relative if it is inside the working directory."""
    with contextlib.suppress(OSError, ValueError):  # working directory removed; path outside it
        return str(path.relative_to(Path.cwd()))
    return str(path)


def sync(path: Path) -> None:
    """Write a file, or a folder's list of entries, from the system's cache to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _report_write_errors(path: Path) -> Iterator[None]:
    """Turn OSErrors of a block that writes a file into UserErrors."""
    try:
        yield
    except OSError as error:
        raise _write_error(path, error) from None


def write_hint(path: Path, error: OSError, options: str) -> str:
    """Return the hint of a UserError about a file that couldn't be written.

    Args:
        path: The file.
        error: Error raised by the operating system.
        options: Names of the options that choose another folder.
    """
    for folder in (path, *path.parents):
        if os.path.islink(folder) and not os.path.exists(folder):  # unlike Path, raises nothing
            return f"mount its disk: {folder} is a link to {folder.readlink()}, which isn't there"
    space = "free some space, or " if error.errno in NO_SPACE else ""
    return f"{space}choose a folder you can write to ({options})"


def _write_error(path: Path, error: OSError) -> UserError:
    """Return the UserError for a file that couldn't be written."""
    options = "--checkpoint-dir, --log-dir, or the option that names this file"
    message = f"can't write {short_path(path)}: {error.strerror or error}"
    return UserError(message, write_hint(path, error, options))


def _umask() -> int:
    """Return this process's umask: the permissions that its new files don't get.

    Reading the umask is only possible by setting it, so it is set twice.
    """
    mask = os.umask(0)
    os.umask(mask)
    return mask


def shipped_folder(name: str) -> Path:
    """Return the path of a folder that is shipped with the package, in it or beside it.

    Args:
        name: ``configs`` or ``envs``.
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
