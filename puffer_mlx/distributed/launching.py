"""Start ranks on this machine (``train.gpus``), and read the variables that a launcher sets.

On several machines, ``mlx.launch`` starts the ranks. Importing this module doesn't load MLX.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from puffer_mlx.errors import UserError
from puffer_mlx.system.signals import handle_signals_with

BACKENDS = {  # by backend: the environment variable that its launcher sets
    "ring": "MLX_HOSTFILE",
    "nccl": "NCCL_HOST_IP",
    "jaccl": "MLX_JACCL_COORDINATOR",
}
MPI_RANK = "OMPI_COMM_WORLD_RANK"
# Environment variables that `launch_ranks` sets.
LAUNCHER_ID = "PUFFER_MLX_STARTED_BY"  # ID of the process that started the rank
REPORTED_FOLDER = "PUFFER_MLX_SAID"  # folder with one file per error that was printed
HOST = "127.0.0.1"
# After a rank has failed: seconds for the others to end, before SIGTERM and before SIGKILL.
TERMINATE_TIMEOUT = 10.0
KILL_TIMEOUT = 60.0
RING_HINT = (
    'mlx.launch writes that file; one of two ranks is [["10.0.0.1:5000"], ["10.0.0.2:5000"]]'
)


def launcher_backend() -> str | None:
    """Return the MLX backend that connects the ranks, or None without a launcher.

    Raises:
        UserError: The addresses of the other ranks are missing or wrong. For some of these errors,
            MLX would end the process without a message.
    """
    if "MLX_RANK" not in os.environ:
        return "mpi" if MPI_RANK in os.environ else None
    rank = os.environ["MLX_RANK"]
    if not rank.isdecimal():
        message = f"MLX_RANK is {rank!r}, not a rank's number: 0, 1, ..."
        raise UserError(message, "start ranks by mlx.launch, or unset MLX_RANK")
    name = next((name for name, key in BACKENDS.items() if os.environ.get(key)), None)
    if name is None:
        raise UserError(
            f"MLX_RANK is {rank}, and none of {', '.join(BACKENDS.values())} says"
            " how to reach the other ranks",
            "start ranks by mlx.launch, or unset MLX_RANK",
        )
    if name == "ring":
        path = os.environ["MLX_HOSTFILE"]
        if os.path.isfile(path) and os.path.getsize(path) < 2:  # mlx.launch -n 1
            return None
        if reason := _host_file_error(path, int(rank)):
            raise UserError(f"rank {rank} can't join: MLX_HOSTFILE {reason}", RING_HINT)
    return name


def _host_file_error(path: str, rank: int) -> str:
    """Return why a rank can't use the file of all ranks' addresses, or "" if it can."""
    if not os.path.isfile(path):
        return f"{path!r} is no file"
    try:
        hosts = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError):
        hosts = None
    if not isinstance(hosts, list):
        return f"{path} is no list of each rank's addresses"
    return f"{path} has no rank {rank}: it lists {len(hosts)}" if rank >= len(hosts) else ""


def launched_externally() -> bool:
    """Return True if a launcher such as mlx.launch or MPI started this process as a rank."""
    return "MLX_RANK" in os.environ or MPI_RANK in os.environ


def launched_rank() -> int:
    """Return this process's rank, read from the launcher's variables; 0 without a launcher."""
    rank = os.environ.get("MLX_RANK") or os.environ.get(MPI_RANK, "0")
    return int(rank) if rank.isdecimal() else 0


# ---- on this machine -----------------------------------------------------------------------------


def launch_ranks(count: int, words: Sequence[str], on_gpus: bool) -> int:
    """Run a command as several ranks on this machine, and wait until all have ended.

    Args:
        count: Number of ranks.
        words: Words of the command. The ranks share this process's standard output and error.
        on_gpus: True to give each rank a GPU and connect the ranks by NCCL; False to divide the
            CPU cores among them.

    Returns:
        The exit code of the first rank that failed, else 0.
    """
    ranks: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as folder, _forwarding_signals(ranks):
        common = {**os.environ, LAUNCHER_ID: str(os.getpid()), REPORTED_FOLDER: folder}
        try:
            for rank, variables in enumerate(_rank_variables(count, on_gpus, Path(folder))):
                variables = {**common, **variables, "MLX_RANK": str(rank)}
                # In a separate process group: the terminal must signal only this process.
                ranks.append(subprocess.Popen(words, env=variables, process_group=0))
                assign_cores(ranks[rank].pid, rank, count)
            return _wait(ranks)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait()


def uses_gpus(device: str) -> bool:
    """Return True if the ranks of a run train on GPUs (connected by NCCL), False for the CPU.

    Args:
        device: Device of the configuration: auto, cpu or gpu.
    """
    import mlx.core as mx

    return device != "cpu" and mx.cuda.is_available()


def assign_cores(process: int, rank: int, count: int) -> None:
    """Restrict a process to its part of the CPU cores, which ``count`` processes share. Linux only.

    Args:
        process: Process ID; 0 for this process.
        rank: Number of the process among them, from 0.
        count: Number of processes among which the cores are divided.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    first = rank * len(cores) // count
    last = (rank + 1) * len(cores) // count
    os.sched_setaffinity(process, cores[first:last] or [cores[rank % len(cores)]])


def _rank_variables(count: int, on_gpus: bool, folder: Path) -> list[dict[str, str]]:
    """Return, for each rank, the environment variables that connect it to the others."""
    ports = free_ports(count)
    if on_gpus:
        common = {"MLX_WORLD_SIZE": str(count), "NCCL_HOST_IP": HOST, "NCCL_PORT": str(ports[0])}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        gpus = visible.split(",") if visible else [str(n) for n in range(count)]
        return [{**common, "CUDA_VISIBLE_DEVICES": gpus[n % len(gpus)]} for n in range(count)]
    path = folder / "hosts.json"
    path.write_text(json.dumps([[f"{HOST}:{port}"] for port in ports]))
    return [{"MLX_HOSTFILE": str(path)}] * count


def free_ports(count: int) -> list[int]:
    """Return TCP ports of this machine that are free at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _forwarding_signals(ranks: Sequence[subprocess.Popen]) -> Iterator[None]:
    """Forward the signals that this process gets, such as Ctrl-C, to all ranks during a block."""

    def forward(signum: int, _: object = None) -> None:
        for process in ranks:
            if process.poll() is None:
                process.send_signal(signum)

    def suspend(*_: object) -> None:
        forward(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # returns after SIGCONT
        forward(signal.SIGCONT)

    with ExitStack() as stack:
        for signum in signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP:
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # by nohup
                stack.enter_context(handle_signals_with(forward, signum))
        stack.enter_context(handle_signals_with(suspend, signal.SIGTSTP))
        yield


def _wait(ranks: Sequence[subprocess.Popen]) -> int:
    """Wait for the ranks' processes to end, but only ``KILL_TIMEOUT`` seconds after a failure.

    Returns:
        The exit code of the first rank that failed, else 0.
    """
    failed = 0
    since = float("inf")  # time of the first failure
    terminated = False
    while None in (codes := [process.poll() for process in ranks]):  # None: not ended
        waited = time.monotonic() - since
        if not failed and (failed := next(filter(None, codes), 0)):
            since = time.monotonic()
            if failed < 0:  # otherwise the rank has printed the reason
                from puffer_mlx.vec.processes import describe_exit

                rank = codes.index(failed)
                print(f"rank {rank} {describe_exit(failed)}", file=sys.stderr, flush=True)
        elif waited > KILL_TIMEOUT:
            break
        elif (
            waited > TERMINATE_TIMEOUT and not terminated
        ):  # a rank may wait forever before training
            terminated = True
            for process in ranks:
                process.terminate()
        time.sleep(0.05)
    failed = failed or next(filter(None, codes), 0)
    return failed if failed >= 0 else 128 - failed


def is_first_report(error: str) -> bool:
    """Return True if this rank is the first on this machine to report an error, so it prints it."""
    if REPORTED_FOLDER not in os.environ:
        return True
    marker = Path(os.environ[REPORTED_FOLDER], hashlib.sha256(error.encode()).hexdigest())
    with suppress(FileNotFoundError):  # the launcher has ended
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return False
    return True


def orphaned() -> bool:
    """Return True if this process is a rank and the process that started it has ended."""
    launcher = os.environ.get(LAUNCHER_ID)
    return launcher is not None and launcher != str(os.getppid())
