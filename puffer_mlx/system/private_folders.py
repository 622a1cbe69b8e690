"""Choose cache folders for compiled code that other users can't write to.

A user who can write to such a folder, or to a folder above it, can make this process run any code.
If the usual folder isn't safe, a private folder in the temporary directory is used instead, with a
warning.

MLX caches compiled code for CPUs and CUDA in ``/tmp/mlx``. That folder belongs to the user who
created it first, but MLX loads code from it in the processes of all users.
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

_TEMPORARY = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # variables, in C++'s search order
_SHARED = ("/tmp", "/var/tmp")
KERNEL_SPACE = 1 << 20  # bytes for a kernel's source and library


def untrusted_reason(path: Path) -> str:
    """Return the reason why code in a folder can't be trusted, or "" if it can.

    The folder, all folders above it, and the targets of symbolic links must belong to this user or
    root. Other users must not be able to write to them, except to parents with the sticky bit, such
    as /tmp, where only owners can replace files. Missing folders are accepted.
    """
    path = Path(os.path.abspath(path))
    real = Path(os.path.realpath(path))
    for folder in dict.fromkeys((*reversed(path.parents), path, *reversed(real.parents), real)):
        try:
            status = os.stat(folder)
            link_status = os.lstat(folder)  # a link's owner may change its target
        except OSError:  # missing or unreadable: reported on use
            continue
        for owner in link_status.st_uid, status.st_uid:
            if owner not in (os.getuid(), 0):
                return f"{folder} belongs to another user ({_name(owner)})"
        sticky = status.st_mode & stat.S_ISVTX and folder not in (path, real)
        if _others_write(status) and not sticky:
            return f"others may write to {folder}"
    return ""


def _others_write(status: os.stat_result) -> bool:
    """Return True if users other than the owner and root may write to a folder.

    A group that has this user as its only member is ignored.
    """
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)


def _is_private_group(gid: int) -> bool:
    if gid == 0:
        return True
    try:
        group = grp.getgrgid(gid)
        user = pwd.getpwuid(os.getuid())
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


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with access for this user only.

    Raises:
        OSError: The folder can't be created.
    """
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


@functools.cache
def private_folder() -> Path | None:
    """Return this user's private folder in the temporary directory, or None on failure.

    Its name is ``puffer_mlx-UID``. If that folder can't be trusted, a new folder is created, which
    is removed when the process ends.
    """
    try:
        usual = tempfile.gettempdir()
    except OSError:  # no writable folder
        return None
    for base in dict.fromkeys(map(Path, (usual, *_SHARED))):
        folder = base / f"puffer_mlx-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            reason = untrusted_reason(folder)
            if not reason and os.access(folder, os.W_OK):
                return folder
            reason = reason or f"{folder} can't be written"
            if untrusted_reason(base / "new"):
                continue
            folder = Path(tempfile.mkdtemp(prefix="puffer_mlx-", dir=base))
        except OSError:
            continue
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        print(
            f"puffer_mlx: {reason}, so compiled code is cached for this run only; hint: remove"
            f" {base / f'puffer_mlx-{os.getuid()}'}",
            file=sys.stderr,
        )
        return folder
    return None


def cache_directory() -> Path:
    """Return the cache folder for compiled libraries, which may not exist yet.

    It is ``$PUFFER_MLX_CACHE`` if set, else ``~/Library/Caches/puffer_mlx`` on macOS, and
    ``$XDG_CACHE_HOME/puffer_mlx`` or ``~/.cache/puffer_mlx`` elsewhere.

    If other users could write libraries there, a private folder in the temporary directory is used
    instead, with a warning.
    """
    if chosen := os.environ.get("PUFFER_MLX_CACHE"):
        return trusted_folder(Path(chosen).expanduser())
    if sys.platform == "darwin":
        return trusted_folder(Path.home() / "Library" / "Caches" / "puffer_mlx")
    base = os.environ.get("XDG_CACHE_HOME")
    return trusted_folder((Path(base) if base else Path.home() / ".cache") / "puffer_mlx")


@functools.cache
def trusted_folder(folder: Path) -> Path:
    """Return a cache folder if it can be trusted, else print a warning and return a private one."""
    reason = untrusted_reason(folder)
    if not reason:
        return folder
    if replacement := private_folder():
        replacement = replacement / folder.name
        consequence = f"so compiled libraries are cached in {replacement}"
    else:  # all folders are unsafe, so use this one
        replacement = folder
        consequence = "but no other folder can be used"
    print(
        f"puffer_mlx: {reason}, {consequence}; hint: remove the others' write permission, or set"
        " PUFFER_MLX_CACHE to a private folder",
        file=sys.stderr,
    )
    return replacement


def mlx_temporary_folder() -> Path:
    """Return the temporary directory that MLX uses (C++'s, which may differ from Python's)."""
    return Path(next((os.environ[n] for n in _TEMPORARY if os.environ.get(n)), _SHARED[0]))


def make_mlx_cache_private() -> None:
    """Make MLX cache compiled code in a folder that only this user can write to.

    MLX reads the temporary directory from the environment at each compilation. If it is safe,
    nothing changes. Otherwise ``TEMPDIR`` is set to a private folder: C++ reads this variable,
    Python and most programs don't. If a variable that C++ reads before ``TEMPDIR`` is set,
    ``TMPDIR`` is set instead. Python's ``tempfile`` is unchanged in this process.
    """
    usual = mlx_temporary_folder()
    if not untrusted_reason(usual) and usual.is_dir() and os.access(usual, os.W_OK):
        return
    folder = private_folder()
    if folder is None:
        print(
            f"puffer_mlx: MLX caches compiled code in {usual}, where other users may write; hint:"
            " set TMPDIR to a private folder",
            file=sys.stderr,
        )
        return
    has_precedent = any(os.environ.get(name) for name in _TEMPORARY[:3])
    # private_folder() has called tempfile, which remembers the folder that TMPDIR named.
    os.environ["TMPDIR" if has_precedent else "TEMPDIR"] = str(folder)


def refuse_full_disk() -> None:
    """Raise an error if MLX can't write a compiled kernel to the temporary directory.

    Raises:
        UserError: The disk is full, or the directory can't be written to.
    """
    from puffer_mlx.errors import UserError  # local: puffer_mlx/__init__.py imports this module

    folder = mlx_temporary_folder() / "mlx"
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(KERNEL_SPACE))
    except OSError as error:
        raise UserError(
            f"MLX can't write compiled kernels to {folder}: {error.strerror}",
            "free some space there, or set TMPDIR to another folder",
        ) from None
