"""Folders that code is loaded from: owned by this user, and not writable by others.

Users who can write to such a folder, or to one above it, can make this process run any code. If the
usual folder isn't safe, a private folder in the temporary directory replaces it, with a warning.

MLX caches compiled code for CPUs and CUDA in ``mlx`` in the temporary directory. That folder
belongs to the first user who made it, and only that user can write to it, but all users load code
from it.
"""

import atexit
import functools
import grp
import os
import pwd
import shutil
import stat
import sys
import tempfile
from pathlib import Path

_TEMPORARY = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # C++'s search order
_SHARED = ("/tmp", "/var/tmp")
ROOM = 1 << 20  # bytes, for a kernel's source and library


def untrusted_reason(path: Path) -> str:
    """Return the reason why code in a folder can't be trusted, or "".

    The folder, all folders above it, and those that symbolic links lead through must belong to this
    user or root. Others must not write to them, except to parents with the sticky bit, such as
    /tmp, where only owners can replace files. Missing folders don't count.
    """
    path = Path(os.path.abspath(path))
    real = Path(os.path.realpath(path))
    for folder in dict.fromkeys((*reversed(path.parents), path, *reversed(real.parents), real)):
        try:
            status, itself = os.stat(folder), os.lstat(folder)  # a link's owner may change it
        except OSError:  # reported on use if missing or unreadable
            continue
        for owner in itself.st_uid, status.st_uid:
            if owner not in (os.getuid(), 0):
                return f"{folder} belongs to another user ({_name(owner)})"
        sticky = status.st_mode & stat.S_ISVTX and folder not in (path, real)
        if _others_write(status) and not sticky:
            return f"others may write to {folder}"
    return ""


def _others_write(status: os.stat_result) -> bool:
    """Return True if users other than the owner and root may write.

    A group with this user as its only member doesn't count.
    """
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _own_group(status.st_gid)


def _own_group(gid: int) -> bool:
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return (
        group.gr_name == user.pw_name and gid == user.pw_gid and set(group.gr_mem) <= {user.pw_name}
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


def make(folder: Path) -> None:
    """Make a folder, and missing ones above it, with access for this user only.

    Raises:
        OSError: The folder can't be made.
    """
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


@functools.cache
def private() -> Path | None:
    """Return this user's private folder in the temporary directory, or None on failure.

    It is ``puffer_mlx-UID`` in every process. If another user has made that folder, it is a new one
    that is removed when the process ends.
    """
    try:
        usual = tempfile.gettempdir()
    except OSError:  # no writable folder
        return None
    for base in dict.fromkeys(map(Path, (usual, *_SHARED))):
        folder = base / f"puffer_mlx-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            wrong = untrusted_reason(folder)
            if not wrong and os.access(folder, os.W_OK):
                return folder
            wrong = wrong or f"{folder} can't be written"
            if untrusted_reason(base / "new"):
                continue
            folder = Path(tempfile.mkdtemp(prefix="puffer_mlx-", dir=base))
        except OSError:
            continue
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        print(
            f"puffer_mlx: {wrong}, so what is compiled is kept for this run only; hint: remove"
            f" {base / f'puffer_mlx-{os.getuid()}'}",
            file=sys.stderr,
        )
        return folder
    return None


def cache_directory() -> Path:
    """Return the cache folder of compiled libraries; it may be missing.

    It is ``$PUFFER_MLX_CACHE``, else the user's cache folder: ``~/Library/Caches/puffer_mlx`` on
    macOS, ``$XDG_CACHE_HOME/puffer_mlx`` or ``~/.cache/puffer_mlx`` elsewhere.

    If other users could put libraries there, a private folder in the temporary directory replaces
    it, with a warning.
    """
    if chosen := os.environ.get("PUFFER_MLX_CACHE"):
        return trusted(Path(chosen).expanduser())
    if sys.platform == "darwin":
        return trusted(Path.home() / "Library" / "Caches" / "puffer_mlx")
    base = os.environ.get("XDG_CACHE_HOME")
    return trusted((Path(base) if base else Path.home() / ".cache") / "puffer_mlx")


@functools.cache
def trusted(folder: Path) -> Path:
    """Return a cache folder, or a private one with a warning if the folder can't be trusted."""
    wrong = untrusted_reason(folder)
    if not wrong:
        return folder
    if other := private():
        other = other / folder.name
        instead = f"compiled libraries are kept in {other}"
    else:  # all folders are unsafe, so use this one
        other = folder
        instead = "but there is no other place"
    print(
        f"puffer_mlx: {wrong}, so {instead}; hint: let only yourself write there, or set"
        " PUFFER_MLX_CACHE to a folder of your own",
        file=sys.stderr,
    )
    return other


def temporary() -> Path:
    """Return the temporary directory as C++, and so MLX, finds it."""
    return Path(next((os.environ[n] for n in _TEMPORARY if os.environ.get(n)), _SHARED[0]))


def keep_mlx_private() -> None:
    """Make MLX cache compiled code where only this user can write.

    MLX reads the temporary directory from the environment at each compilation. If it belongs to
    this user, nothing changes. Otherwise ``TEMPDIR`` is set to a private folder: C++ uses that
    variable, Python and most programs don't. ``TMPDIR`` is set instead if a variable that precedes
    ``TEMPDIR`` is set. Python's ``tempfile`` is unchanged in this process.
    """
    usual = temporary()
    if not untrusted_reason(usual) and usual.is_dir() and os.access(usual, os.W_OK):
        return
    folder = private()
    if folder is None:
        print(
            f"puffer_mlx: MLX keeps what it compiles in {usual}, where others may write; hint: set"
            " TMPDIR to a folder of your own",
            file=sys.stderr,
        )
        return
    others = any(os.environ.get(name) for name in _TEMPORARY[:3])
    os.environ["TMPDIR" if others else "TEMPDIR"] = str(folder)  # private() has called tempfile


def refuse_full() -> None:
    """Raise an error if the temporary directory has no space for a kernel that MLX compiles.

    Raises:
        UserError: The directory can't be written.
    """
    from puffer_mlx.errors import UserError  # local: all of the package imports this file

    folder = temporary() / "mlx"
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(ROOM))
    except OSError as error:
        raise UserError(
            f"MLX can't write the kernels that it compiles to {folder}: {error.strerror}",
            "free some space there, or set TMPDIR to another folder",
        ) from None
