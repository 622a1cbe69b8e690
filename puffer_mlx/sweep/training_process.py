"""Run one training of a sweep as a ``puffer-mlx train`` process, with its share of cores or GPUs.

Each run has a separate folder. The sweep follows the run through its log.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import CurveReader, Outcome, Point
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.signals import parent_variables

STOP_TIMEOUT = 30.0  # seconds from the request to end until the process is killed
KILL_TIMEOUT = 5.0  # seconds to wait for a killed process
OUTPUT_FILE = "output.txt"

# ---- slots for runs ------------------------------------------------------------------------------

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Variables that limit the threads of libraries, which otherwise use all cores.
_THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "MKL_NUM_THREADS"


class Slot(NamedTuple):
    """Cores and GPUs of the machine on which a sweep trains one run at a time.

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
        """Return the environment variables for a run with these cores and GPUs."""
        variables = dict(os.environ)
        if self.threads:
            variables |= dict.fromkeys(_THREADS, str(self.threads))
        return variables | ({VISIBLE_GPUS: ",".join(self.gpus)} if self.gpus else {})

    @property
    def options(self) -> list[str]:
        """Command-line options for a run with these cores."""
        return ["--vec.max-threads", str(self.threads)] if self.threads else []


def make_slots(
    parallel: int, cores: Sequence[int], gpus: Sequence[str] = (), gpus_per_run: int = 1
) -> list[Slot]:
    """Divide cores and GPUs among the simultaneous runs of a sweep. Returns their slots.

    Args:
        parallel: Number of simultaneous runs; 0 for one per block of GPUs, or one without GPUs.
        cores: Cores that this process may use.
        gpus: Names of the available GPUs; empty if runs use no NVIDIA GPU.
        gpus_per_run: GPUs per run.

    Raises:
        UserError: If there are too few GPUs or cores.
    """
    max_runs = len(gpus) // gpus_per_run if gpus else len(cores)
    if gpus and not max_runs:
        raise UserError(
            f"a run takes {gpus_per_run} GPUs, and there are {len(gpus)}",
            "lower train.gpus, or raise sweep.gpus",
        )
    count = parallel or (max_runs if gpus else 1)
    if count > max_runs:
        resources = (
            f"{len(gpus)} GPUs, {gpus_per_run} for each run" if gpus else f"{len(cores)} cores"
        )
        raise UserError(f"--parallel {count} runs don't fit {resources}", f"at most {max_runs}")
    if count == 1 and not gpus:
        return [Slot()]
    size = max(1, len(cores) // count)
    return [
        Slot(
            i,
            tuple(cores[i * size : (i + 1) * size]),
            tuple(gpus[i * gpus_per_run : (i + 1) * gpus_per_run]),
            size,
        )
        for i in range(count)
    ]


def available_cores() -> list[int]:
    """Return the indices of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    from puffer_mlx.ops.cpu_extension import count_cores  # on a Mac: the performance cores

    return list(range(count_cores()))


def available_gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs that this process may use; empty on a Mac."""
    if (visible := os.environ.get(VISIBLE_GPUS)) is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    if sys.platform == "darwin" or not (executable := shutil.which("nvidia-smi")):
        return []
    query = [executable, "--query-gpu=index", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.split() if result.returncode == 0 else []


# ---- processes -----------------------------------------------------------------------------------


class ProcessIdentity(NamedTuple):
    """Identity of a process by pid and start time, since pids are reused.

    Args:
        pid: Process id.
        started_at: Start time by the system clock, in seconds.
    """

    pid: int
    started_at: float

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """Return the identity of a running process from its pid."""
        return cls(pid, psutil.Process(pid).create_time())

    def find_process(self) -> psutil.Process | None:
        """Return the running process that has this pid and start time, or None after its end."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) < 1.0
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def end(self, timeout: float | None = None) -> bool:
        """Terminate the process, then kill it and its children. Returns True if it was running.

        Args:
            timeout: Seconds until the process is killed; None for ``STOP_TIMEOUT``.
        """
        process = self.find_process()
        if process is None:
            return False
        try:
            processes = [process, *process.children(recursive=True)]
        except psutil.Error:
            processes = [process]
        _call_each(processes[:1], "terminate")
        psutil.wait_procs(processes[:1], STOP_TIMEOUT if timeout is None else timeout)
        _call_each(processes, "kill")
        psutil.wait_procs(processes, KILL_TIMEOUT)
        return True


def _call_each(processes: Sequence[psutil.Process], method: str) -> None:
    for process in processes:
        with suppress(psutil.Error):
            getattr(process, method)()


class TrainingProcess:
    """A training process that a sweep has started: follow its log, stop it, and get its result.

    Args:
        words: Words of its command line, from ENV on.
        folder: Folder of the run, created here.
        slot: Slot with the run's cores or GPUs.
        metric: Name of the score in a log record.
        max_points: Maximum number of points of its curve.
        hang_timeout: Seconds without a new record or heartbeat after which the run is ended.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        slot: Slot,
        metric: str,
        max_points: int,
        hang_timeout: float,
    ) -> None:
        self._folder = folder
        self._max_points = max_points
        self._metric = metric
        self._hang_timeout = hang_timeout
        self._error = ""
        self._stop_reason = ""
        self._log = CurveReader(folder / "logs", metric)
        folder.mkdir(parents=True, exist_ok=True)
        command = program.package_command("train", *words, *slot.options, "-q")
        with open(folder / OUTPUT_FILE, "wb") as output, _restricted_to(slot.cores):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=slot.environment() | parent_variables(),
                start_new_session=True,  # so that Ctrl-C in the terminal only reaches the sweep
            )
        self.identity = ProcessIdentity.of(self._process.pid)
        self._changed_at = time.monotonic()
        self._kill_deadline: float | None = None  # time of the kill, after a request to end

    def poll(self) -> list[Point]:
        """Return the run's new learning-curve points; end a run that hangs or is broken.

        A run is broken if its score isn't finite.
        """
        previous = self._log.modified_ns
        points = self._log.new_points()
        now = time.monotonic()
        if self._log.modified_ns != previous:
            self._changed_at = now
        if self._kill_deadline is None and self._log.error:
            self._error = self._log.error
            self._terminate()
        elif self._kill_deadline is None and now - self._changed_at > self._hang_timeout:
            self._error = f"it hung: no new record for {self._hang_timeout:g} seconds"
            self._terminate()
        elif self._kill_deadline is not None and now > self._kill_deadline:
            self.identity.end(0)
        return points

    def stop(self, reason: str) -> None:
        """End the training early for a reason. Its curve so far becomes its result."""
        if self._kill_deadline is None:
            self._stop_reason = reason
            self._terminate()

    def _terminate(self) -> None:
        """Ask the training process to end, and set the deadline after which it is killed."""
        self._kill_deadline = time.monotonic() + STOP_TIMEOUT
        if self._process.poll() is None:
            self._process.terminate()

    def outcome(self) -> Outcome | None:
        """Return the training process's result, or None while the process is running."""
        if (code := self._process.poll()) is None:
            return None
        self._end_group()
        self._log.new_points()
        self._log.close()
        if self._log.skipped_note:
            verbosity.note(f"{self._folder}: {self._log.skipped_note}; it was skipped")
        points = self._log.curve(self._max_points)
        terminated = self._kill_deadline is not None
        error = self._error or (self._failure_reason(code) if code and not terminated else "")
        error = error or self._log.error
        if not points and not error:
            question = "did no episode end, or is [sweep] metric misspelled?"
            error = f"no record has {self._metric}: {question}"
        return Outcome([] if error else points, error, "" if error else self._stop_reason)

    def is_running(self) -> bool:
        """Return True if the training process is running."""
        return self._process.poll() is None

    def end(self, timeout: float | None = None) -> None:
        """End the training process now and discard its result.

        Args:
            timeout: Seconds until the process is killed; None for ``STOP_TIMEOUT``.
        """
        self.identity.end(timeout)
        self._process.wait()
        self._end_group()
        self._log.close()

    def _end_group(self) -> None:
        """Kill the child processes that the training left behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _failure_reason(self, code: int) -> str:
        """Return why the training failed, from its exit code and output."""
        if code < 0:
            name = signal.Signals(-code).name
            memory = "; possibly out of memory" if -code == signal.SIGKILL else ""
            return f"ended by {name}{memory} ({self._folder / OUTPUT_FILE})"
        lines: list[str] = []
        with suppress(OSError):  # the folder may have been removed
            lines = (self._folder / OUTPUT_FILE).read_text(errors="replace").splitlines()
        start = next((i for i in reversed(range(len(lines))) if lines[i].startswith("error: ")), -1)
        if start >= 0:
            return "; ".join(line.strip().removeprefix("error: ") for line in lines[start:])
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"{last} (exit code {code}; {self._folder / OUTPUT_FILE})"


@contextmanager
def _restricted_to(cores: Sequence[int]) -> Iterator[None]:
    """Restrict processes started in the block to some cores, if the system supports it.

    Raises:
        UserError: If the block raised an OSError, because a process can't be started.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    previous = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    except OSError as error:
        raise UserError(
            f"a run can't be started: {error.strerror}", "check the free memory"
        ) from None
    finally:
        os.sched_setaffinity(0, previous)
