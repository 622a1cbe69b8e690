"""Folders that code is loaded from: this user's, and not writable by others.

Whoever can write to such a folder, or to one above it, can have this process run what they like.
Where the usual place isn't safe a folder of this user's own in the temporary directory takes its
place, and one line says so.

MLX keeps what it compiles for CPUs and CUDA in ``mlx`` in the temporary directory, which belongs to
whoever was first there; nobody else can write to it, and all trust it.
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

_TEMPORARY = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # where C++ looks for it, in this order
_SHARED = ("/tmp", "/var/tmp")
ROOM = 1 << 20  # bytes, of a kernel's source and library


def fault(path: Path) -> str:
    """Why code in a folder can't be trusted; empty if it can.

    Every folder above it counts too, also those that symbolic links lead through, as far as they
    exist: they must be this user's or root's, and others mustn't write to them. Where the sticky
    bit is set, as in /tmp, they may: what is in there is only its owner's.
    """
    path = Path(os.path.abspath(path))
    real = Path(os.path.realpath(path))
    for folder in dict.fromkeys((*reversed(path.parents), path, *reversed(real.parents), real)):
        try:
            status, itself = os.stat(folder), os.lstat(folder)  # a link's owner may change it
        except OSError:  # what isn't there, or can't be read, is met by whoever uses it
            continue
        for owner in itself.st_uid, status.st_uid:
            if owner not in (os.getuid(), 0):
                return f"{folder} belongs to another user ({_name(owner)})"
        sticky = status.st_mode & stat.S_ISVTX and folder not in (path, real)
        if _others_write(status) and not sticky:
            return f"others may write to {folder}"
    return ""


def _others_write(status: os.stat_result) -> bool:
    """Whether somebody but its owner, and root, may write; a group of one's own is nobody else."""
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
    """Make a folder, and those missing above it, that only this user can enter.

    Raises:
        OSError: it can't be made.
    """
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


@functools.cache
def private() -> Path | None:
    """A folder of this user's own in the temporary directory; None if none can be had.

    The same in every process, ``puffer_mlx-UID``, unless somebody else has made it: then one that
    is removed when the process ends.
    """
    try:
        usual = tempfile.gettempdir()
    except OSError:  # no folder can be written to
        return None
    for base in dict.fromkeys(map(Path, (usual, *_SHARED))):
        folder = base / f"puffer_mlx-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            wrong = fault(folder)
            if not wrong and os.access(folder, os.W_OK):
                return folder
            wrong = wrong or f"{folder} can't be written"
            if fault(base / "new"):
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


@functools.cache
def trusted(folder: Path, what: str, remedy: str) -> Path:
    """The folder; where it can't be trusted, one of this user's own, and a line says so.

    Args:
        folder: need not be there.
        what: is kept in it.
        remedy: how to have it kept where one wants.
    """
    wrong = fault(folder)
    if not wrong:
        return folder
    other = private()
    if other is None:  # then nothing here is safe, and this folder not less than others
        other, instead = folder, "but there is no other place"
    else:
        other = other / folder.name
        instead = f"{what} are kept in {other}"
    print(f"puffer_mlx: {wrong}, so {instead}; hint: {remedy}", file=sys.stderr)
    return other


def cache_directory() -> Path:
    """Where compiled libraries are kept.

    ``$PUFFER_MLX_CACHE``, else the user's cache folder: ``~/Library/Caches/puffer_mlx`` on macOS,
    ``$XDG_CACHE_HOME/puffer_mlx`` or ``~/.cache/puffer_mlx`` elsewhere. It may not exist yet.

    Where others could put a library of theirs it is a folder of this user's own in the temporary
    directory instead, and one line says so.
    """
    remedy = "let only yourself write there, or set PUFFER_MLX_CACHE to a folder of your own"
    return trusted(_chosen_cache(), "compiled libraries", remedy)


def _chosen_cache() -> Path:
    if chosen := os.environ.get("PUFFER_MLX_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "puffer_mlx"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "puffer_mlx"


def temporary() -> Path:
    """The temporary directory as C++, and so MLX, finds it."""
    return Path(next((os.environ[n] for n in _TEMPORARY if os.environ.get(n)), _SHARED[0]))


def keep_mlx_private() -> None:
    """Have MLX keep what it compiles where only this user can write.

    It looks for the temporary directory in the environment, each time it compiles something. One
    that is this user's already stays. Else a variable names a private one: ``TEMPDIR``, which C++
    obeys but Python and most programs don't; but ``TMPDIR`` where one of the others is set, as it
    precedes them. Python's own choice, ``tempfile``'s, stays in this process.
    """
    usual = temporary()
    if not fault(usual) and usual.is_dir() and os.access(usual, os.W_OK):
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
    os.environ["TMPDIR" if others else "TEMPDIR"] = str(folder)  # private() has asked tempfile


def refuse_full() -> None:
    """Refuse a temporary directory that has no room for a kernel that MLX compiles.

    Raises:
        UserError: nothing can be written there.
    """
    from puffer_mlx.errors import UserError  # here alone: the whole package imports this file

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
