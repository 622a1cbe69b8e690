"""Files are published by rename: a reader sees the old file or the whole new one."""

import contextlib
import os
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
        raise UserError(
            f"can't write {path}: {error.strerror or error}",
            "free some space, or choose a folder you can write to (--checkpoint-dir, --log-dir)",
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
