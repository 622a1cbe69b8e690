"""Run and measure processes on separate cores, and read the logs of their runs."""

import json
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from puffer_mlx.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
BENCHMARKS = Path(__file__).parent  # added to PYTHONPATH, for the benchmarks' environments


class Spent(NamedTuple):
    """Output and cost of a process."""

    out: str
    cpu: float  # seconds, user and system, with its children
    wall: float


def process(command: list[str], cores: set[int], cwd: Path | None = None) -> Spent:
    """Run a command on some cores and wait for its end. Returns its output and cost.

    Args:
        command: Command line.
        cores: Cores to use. Empty: all.
        cwd: Working directory.

    Raises:
        UserError: If the command fails. The message has the end of its error output.
    """
    threads = str(len(cores) or 1)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        modules = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **dict.fromkeys(names, threads), "PYTHONPATH": modules}
        child = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=errors, env=environment)
        if cores:
            os.sched_setaffinity(child.pid, cores)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        out.seek(0), errors.seek(0)
        if child.returncode:
            last = errors.read().decode(errors="replace").strip()[-1500:]
            raise UserError(f"exit status {child.returncode}: {last}", shlex.join(command[1:]))
        return Spent(out.read().decode(), usage.ru_utime + usage.ru_stime, wall)


def measured(
    command: list[object], cores: set[int], cwd: Path | None = None
) -> tuple[dict[str, Any], Spent]:
    """Return the JSON that a command prints in a line after "measured ", and its cost.

    Raises:
        UserError: If the command fails.
    """
    spent = process([*map(str, command)], cores, cwd)
    (line,) = (line for line in spent.out.splitlines() if line.startswith("measured "))
    return json.loads(line.removeprefix("measured ")), spent


def log_of(folder: Path) -> list[dict[str, float]]:
    """Return the log records of the only run in a folder.

    Raises:
        UserError: If there is no log, or several.
    """
    logs = sorted(folder.glob("logs/*/*.jsonl"))
    if len(logs) != 1:
        raise UserError(
            f"{folder} has {len(logs)} logs, expected one", "remove the folder and run it again"
        )
    return [json.loads(line) for line in logs[0].read_text().splitlines()]


def cores_of(jobs: int, threads: int) -> list[set[int]]:
    """Divide the available cores among parallel runs.

    Returns:
        The cores of each run; empty sets if this system can't bind processes to cores.

    Raises:
        UserError: If there are too few cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [set() for _ in range(jobs)]
    free = sorted(os.sched_getaffinity(0))
    if jobs * threads > len(free):
        needed = f"{jobs} runs at a time on {threads} cores each need {jobs * threads} cores"
        raise UserError(f"{needed}; there are {len(free)}", "use fewer --jobs or --threads")
    return [set(free[threads * i : threads * (i + 1)]) for i in range(jobs)]


def side_by_side(
    work: Callable[[T, set[int]], R], every: Iterable[T], jobs: int, threads: int
) -> list[R]:
    """Run a function for several items in parallel, each on separate cores.

    Raises:
        UserError: If there are too few cores.
        Exception: An error of the function, raised after all items.
    """
    free: SimpleQueue[set[int]] = SimpleQueue()
    for cores in cores_of(jobs, threads):
        free.put(cores)

    def one(thing: T) -> R:
        cores = free.get()
        try:
            return work(thing, cores)
        finally:
            free.put(cores)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, every))
