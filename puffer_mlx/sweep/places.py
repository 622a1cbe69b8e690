"""Where the runs of a sweep go: each on cores, or GPUs, that no other one has meanwhile."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from puffer_mlx.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Of libraries that take all cores for theirs unless they are told.
_THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "MKL_NUM_THREADS"


class Place(NamedTuple):
    """Where one run goes at a time.

    Args:
        number: of the place, from 0.
        cores: it may use; empty: all.
        gpus: as ``CUDA_VISIBLE_DEVICES`` names them; empty: what there is.
        threads: for a run; 0: as many as it takes by itself.
    """

    number: int = 0
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    threads: int = 0

    def environment(self) -> dict[str, str]:
        """This process's variables as a run in this place gets them."""
        variables = dict(os.environ)
        if self.threads:
            variables |= dict.fromkeys(_THREADS, str(self.threads))
        return variables | ({VISIBLE: ",".join(self.gpus)} if self.gpus else {})

    @property
    def words(self) -> list[str]:
        """Options that a run in this place gets."""
        return ["--vec.max-threads", str(self.threads)] if self.threads else []


def share(parallel: int, cores: Sequence[int], gpus: Sequence[str] = (), each: int = 1) -> list:
    """Places for so many runs at once: disjoint blocks of cores, and of GPUs.

    Args:
        parallel: runs at once; 0: as many as GPUs allow, without GPUs one.
        cores: numbers of those that this process may use.
        gpus: names of those that there are to use; empty: runs compute elsewhere.
        each: GPUs of one run.

    Raises:
        UserError: there are fewer GPUs, or cores, than that takes.
    """
    fits = len(gpus) // each if gpus else len(cores)
    if gpus and not fits:
        raise UserError(
            f"a run takes {each} GPUs, and there are {len(gpus)}", "lower train.gpus, or sweep.gpus"
        )
    count = parallel or (fits if gpus else 1)
    if count > fits:
        what = f"{len(gpus)} GPUs, {each} for each run" if gpus else f"{len(cores)} cores"
        raise UserError(f"--parallel {count} runs don't fit {what}", f"at most {fits}")
    if count == 1 and not gpus:
        return [Place()]
    size = max(1, len(cores) // count)
    return [
        Place(
            i,
            tuple(cores[i * size : (i + 1) * size]),
            tuple(gpus[i * each : (i + 1) * each]),
            size,
        )
        for i in range(count)
    ]


def own_cores() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    from puffer_mlx.ops.cpu_extension import threads  # of a Mac those for performance

    return list(range(threads()))


def own_gpus() -> list[str]:
    """Names of the NVIDIA GPUs that this process may use; none on a Mac, whose one all share."""
    if (visible := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    if sys.platform == "darwin" or not (program := shutil.which("nvidia-smi")):
        return []
    query = [program, "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []
