"""A run's folder while the run is under way: held by one process, rid of what killed ones left."""

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from puffer_mlx.checkpoint.folder import VIDEOS, prepare, run_folder
from puffer_mlx.config import Config
from puffer_mlx.system.files import locked

# The temporary names of system/files.py for what is published in such a folder.
LEFT = re.compile(r"\.([0-9]{16}|config)-[a-z0-9_]{8}(\.ini|\.gif)?|\.best-[0-9]+")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's folder during a block, and clear away half-written files of killed processes.

    Raises:
        UserError: another process trains this run, or the folder can't be written to.
    """
    with locked(folder, "the run") as alone:
        left = [*folder.iterdir(), *(folder / VIDEOS).glob(".*")] if alone else []
        for path in left:
            if not LEFT.fullmatch(path.name):
                continue
            if path.is_symlink() or path.is_file():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
        yield


@contextlib.contextmanager
def new_run(config: Config) -> Iterator[Path]:
    """Make the folder of a run that begins, and hold it during a block.

    Yields:
        The folder; its name, the time in milliseconds, is the run's.

    Raises:
        UserError: the folder can't be written.
    """
    number = time.time_ns() // 1_000_000
    with contextlib.suppress(OSError):  # said by ``prepare``
        run_folder(config, "").mkdir(parents=True, exist_ok=True)
        while not _create(run_folder(config, str(number))):  # by a run that began at the same time
            number += 1
    folder = prepare(config, str(number))
    with held(folder):
        yield folder


def _create(folder: Path) -> bool:
    """Whether this call made a folder; False if it was there."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True
