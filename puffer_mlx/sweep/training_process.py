"""Run one training of a sweep as a ``puffer-mlx train`` process with its cores or GPUs.

Each run has a separate folder. The sweep follows the run through its log.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import LogReader, Outcome, Point
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.signals import parent_variables

STOP_TIMEOUT = 30.0  # seconds between the request to end and the kill
KILL_TIMEOUT = 5.0  # seconds to wait for a killed process
OUTPUT = "output.txt"

# ---- slots for runs ------------------------------------------------------------------------------

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Number of threads, read by libraries that otherwise use all cores.
_THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "MKL_NUM_THREADS"


class Slot(NamedTuple):
    """A slot for one run at a time.

    Args:
        number: Index of the slot, from 0.
        cores: Cores that the run may use; empty for all.
        gpus: Names for ``CUDA_VISIBLE_DEVICES``; empty leaves the variable unchanged.
        threads: Threads of a run; 0 for the run's default.
    """

    number: int = 0
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    threads: int = 0

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a run in this slot."""
        variables = dict(os.environ)
        if self.threads:
            variables |= dict.fromkeys(_THREADS, str(self.threads))
        return variables | ({VISIBLE: ",".join(self.gpus)} if self.gpus else {})

    @property
    def words(self) -> list[str]:
        """Command-line options of a run in this slot."""
        return ["--vec.max-threads", str(self.threads)] if self.threads else []


def make_slots(
    parallel: int, cores: Sequence[int], gpus: Sequence[str] = (), each: int = 1
) -> list[Slot]:
    """Return the slots of a sweep, with disjoint blocks of cores and of GPUs.

    Args:
        parallel: Number of simultaneous runs; 0 for one per block of GPUs, or one without GPUs.
        cores: Cores that this process may use.
        gpus: Names of the available GPUs; empty if runs use no NVIDIA GPU.
        each: GPUs per run.

    Raises:
        UserError: If there are too few GPUs or cores.
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
        return [Slot()]
    size = max(1, len(cores) // count)
    return [
        Slot(
            i,
            tuple(cores[i * size : (i + 1) * size]),
            tuple(gpus[i * each : (i + 1) * each]),
            size,
        )
        for i in range(count)
    ]


def available_cores() -> list[int]:
    """Return the indices of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    from puffer_mlx.ops.cpu_extension import threads  # on a Mac: the performance cores

    return list(range(threads()))


def available_gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs that this process may use; empty on a Mac."""
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


# ---- processes -----------------------------------------------------------------------------------


class Identity(NamedTuple):
    """A process, identified even after its pid was reused.

    Args:
        pid: Process id.
        began: Start time by the system clock, in seconds.
    """

    pid: int
    began: float

    @classmethod
    def of(cls, pid: int) -> "Identity":
        """Return the identity of a running process."""
        return cls(pid, psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """Return the process, or None after its end."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.began) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def end(self, timeout: float | None = None) -> bool:
        """Terminate the process, then kill it and its children. Returns True if it was running."""
        process = self.find()
        if process is None:
            return False
        try:
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            family = [process]
        _each(family[:1], "terminate")
        psutil.wait_procs(family[:1], STOP_TIMEOUT if timeout is None else timeout)
        _each(family, "kill")
        psutil.wait_procs(family, KILL_TIMEOUT)
        return True


def _each(processes: Sequence[psutil.Process], method: str) -> None:
    for process in processes:
        with suppress(psutil.Error):
            getattr(process, method)()


class TrainingProcess:
    """A training process of a sweep.

    Args:
        words: Words of its command line, from ENV on.
        folder: Folder of the run, created here.
        slot: Slot with the run's cores or GPUs.
        metric: Name of the score in a log record.
        points: Maximum number of points of its curve.
        hang_timeout: Seconds without a new record or heartbeat after which the run is ended.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        slot: Slot,
        metric: str,
        points: int,
        hang_timeout: float,
    ) -> None:
        self._folder = folder
        self._points = points
        self._metric = metric
        self._hang_timeout = hang_timeout
        self._fault = ""
        self._stopped = ""
        self._log = LogReader(folder / "logs", metric)
        folder.mkdir(parents=True, exist_ok=True)
        command = program.package_command("train", *words, *slot.words, "-q")
        with open(folder / OUTPUT, "wb") as output, _on(slot.cores):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=slot.environment() | parent_variables(),
                start_new_session=True,  # so that Ctrl-C in the terminal only reaches the sweep
            )
        self.identity = Identity.of(self._process.pid)
        self._moved = time.monotonic()
        self._until: float | None = None  # time of the kill, once asked to end

    def look(self) -> list[Point]:
        """Return the points since the last call; end a run that hangs or has a NaN score."""
        before = self._log.changed
        points = self._log.new_points()
        now = time.monotonic()
        if self._log.changed != before:
            self._moved = now
        if self._until is None and self._log.bad:
            self._fault = self._log.bad
            self._ask()
        elif self._until is None and now - self._moved > self._hang_timeout:
            self._fault = f"it hung: no new record for {self._hang_timeout:g} seconds"
            self._ask()
        elif self._until is not None and now > self._until:
            self.identity.end(0)
        return points

    def stop(self, why: str) -> None:
        """End the run early. Its curve so far counts."""
        if self._until is None:
            self._stopped = why
            self._ask()

    def _ask(self) -> None:
        self._until = time.monotonic() + STOP_TIMEOUT
        if self._process.poll() is None:
            self._process.terminate()

    def outcome(self) -> Outcome | None:
        """Return the result of the run, or None while it is running."""
        if (code := self._process.poll()) is None:
            return None
        self._end_group()
        self._log.new_points()
        self._log.close()
        if self._log.skipped:
            verbosity.note(f"{self._folder}: {self._log.skipped}; it was skipped")
        points = self._log.points(self._points)
        asked = self._until is not None
        fault = self._fault or (self._reason(code) if code and not asked else "")
        fault = fault or self._log.bad
        if not points and not fault:
            which = "did no episode end, or does [sweep] metric name another?"
            fault = f"no record has {self._metric}: {which}"
        return Outcome([] if fault else points, fault, "" if fault else self._stopped)

    def is_running(self) -> bool:
        """Return True if the process is running."""
        return self._process.poll() is None

    def end(self, timeout: float | None = None) -> None:
        """End the run now and discard its result.

        Args:
            timeout: Seconds until the process is killed; None for ``STOP_TIMEOUT``.
        """
        self.identity.end(timeout)
        self._process.wait()
        self._end_group()
        self._log.close()

    def _end_group(self) -> None:
        """Kill the processes that the run left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reason(self, code: int) -> str:
        """Return the reason why the run failed, from its exit code and output."""
        if code < 0:
            name = signal.Signals(-code).name
            memory = "; possibly out of memory" if -code == signal.SIGKILL else ""
            return f"ended by {name}{memory} ({self._folder / OUTPUT})"
        lines: list[str] = []
        with suppress(OSError):  # the folder may have been removed
            lines = (self._folder / OUTPUT).read_text(errors="replace").splitlines()
        error = next((i for i in reversed(range(len(lines))) if lines[i].startswith("error: ")), -1)
        if error >= 0:
            return "; ".join(line.strip().removeprefix("error: ") for line in lines[error:])
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"{last} (exit code {code}; {self._folder / OUTPUT})"


@contextmanager
def _on(cores: Sequence[int]):
    """Restrict processes started in the block to some cores, if the system supports it."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    except OSError as error:
        raise UserError(
            f"a run can't be started: {error.strerror}", "check the free memory"
        ) from None
    finally:
        os.sched_setaffinity(0, before)
