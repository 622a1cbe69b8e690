"""Launchers: what one says to the rank that it started, and ours on this machine, ``train.gpus``.

On several machines ``mlx.launch`` starts ranks. Nothing here imports MLX before it is needed.
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
from puffer_mlx.system.signals import handled_by

BACKENDS = {  # which variable says that it is this one
    "ring": "MLX_HOSTFILE",
    "nccl": "NCCL_HOST_IP",
    "jaccl": "MLX_JACCL_COORDINATOR",
}
MPI_RANK = "OMPI_COMM_WORLD_RANK"
STARTER = "PUFFER_MLX_STARTED_BY"  # the number of the process that has started a rank
SAID = "PUFFER_MLX_SAID"  # its folder, in which a file stands for each error that was printed
HOST = "127.0.0.1"
NOTICES = 10.0  # seconds that other ranks have to notice that one has failed; then they are asked
PATIENCE = 60.0  # seconds that they have to end
RING_HINT = (
    'mlx.launch writes that file; one of two ranks is [["10.0.0.1:5000"], ["10.0.0.2:5000"]]'
)


def backend() -> str | None:
    """The backend that this process is to join its ranks by; None: it is started alone.

    Raises:
        UserError: it is a rank, and what says how to reach the others is missing or wrong: of some
            of that MLX makes no error, but the end of the process.
    """
    if "MLX_RANK" not in os.environ:
        return "mpi" if MPI_RANK in os.environ else None
    rank = os.environ["MLX_RANK"]
    if not rank.isdecimal():
        words = f"MLX_RANK is {rank!r}, not a rank's number: 0, 1, ..."
        raise UserError(words, "start ranks by mlx.launch, or unset MLX_RANK")
    name = next((name for name, key in BACKENDS.items() if os.environ.get(key)), None)
    if name is None:
        raise UserError(
            f"MLX_RANK is {rank}, and none of {', '.join(BACKENDS.values())} says"
            " how to reach the other ranks",
            "start ranks by mlx.launch, or unset MLX_RANK",
        )
    if name == "ring":
        path = os.environ["MLX_HOSTFILE"]
        if os.path.isfile(path) and os.path.getsize(path) < 2:  # as mlx.launch -n 1 writes it
            return None
        if wrong := _wrong_hosts(path, int(rank)):
            raise UserError(f"rank {rank} can't join: MLX_HOSTFILE {wrong}", RING_HINT)
    return name


def _wrong_hosts(path: str, rank: int) -> str:
    """What is wrong with a host file for this rank; empty if nothing is."""
    if not os.path.isfile(path):
        return f"{path!r} is no file"
    try:
        hosts = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError):
        hosts = None
    if not isinstance(hosts, list):
        return f"{path} is no list of each rank's addresses"
    return f"{path} has no rank {rank}: it lists {len(hosts)}" if rank >= len(hosts) else ""


def started() -> bool:
    """Whether a launcher has started this process."""
    return "MLX_RANK" in os.environ or MPI_RANK in os.environ


def launched_rank() -> int:
    """Which rank a launcher says that this is; 0 without one."""
    rank = os.environ.get("MLX_RANK") or os.environ.get(MPI_RANK, "0")
    return int(rank) if rank.isdecimal() else 0


# ---- ours ----------------------------------------------------------------------------------------


def start_ranks(count: int, words: Sequence[str], on_gpus: bool) -> int:
    """Run a command on several ranks of this machine, to its end.

    Args:
        count: how many.
        words: the command. Its processes share standard output and error.
        on_gpus: each rank gets a GPU, and NCCL joins them; else each gets a share of the cores.

    Returns:
        The exit code of the first rank that failed, else 0.
    """
    ranks: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as folder, _passed_on(ranks):
        common = {**os.environ, STARTER: str(os.getpid()), SAID: folder}
        try:
            for rank, variables in enumerate(_group(count, on_gpus, Path(folder))):
                variables = {**common, **variables, "MLX_RANK": str(rank)}
                # In a separate group, so that the terminal signals this process alone.
                ranks.append(subprocess.Popen(words, env=variables, process_group=0))
                share_cores(ranks[rank].pid, rank, count)
            return _wait(ranks)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait()


def uses_gpus(device: str) -> bool:
    """Whether ranks train on GPUs that NCCL joins."""
    import mlx.core as mx

    return device != "cpu" and mx.cuda.is_available()


def share_cores(process: int, rank: int, count: int) -> None:
    """Give a process its share of the cores of this one, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    first, last = rank * len(cores) // count, (rank + 1) * len(cores) // count
    os.sched_setaffinity(process, cores[first:last] or [cores[rank % len(cores)]])


def _group(count: int, on_gpus: bool, folder: Path) -> list[dict[str, str]]:
    """What the environment says to each rank of how to reach the others."""
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
    """Ports that nobody listens to now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _passed_on(ranks: Sequence[subprocess.Popen]) -> Iterator[None]:
    """Pass on to all ranks what this process is signalled, Ctrl-Z included."""

    def pass_on(number: int, _: object = None) -> None:
        for process in ranks:
            if process.poll() is None:
                process.send_signal(number)

    def suspend(*_: object) -> None:
        pass_on(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # returns after SIGCONT
        pass_on(signal.SIGCONT)

    with ExitStack() as stack:
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup's
                stack.enter_context(handled_by(pass_on, number))
        stack.enter_context(handled_by(suspend, signal.SIGTSTP))
        yield


def _wait(ranks: Sequence[subprocess.Popen]) -> int:
    """Wait until all have ended; after one has failed, not for long."""
    failed, since, asked = 0, float("inf"), False
    while None in (codes := [process.poll() for process in ranks]):
        waited = time.monotonic() - since
        if not failed and (failed := next(filter(None, codes), 0)):
            since = time.monotonic()
            if failed < 0:  # else it has said why
                from puffer_mlx.vec.processes import how_it_ended

                rank = codes.index(failed)
                print(f"rank {rank} {how_it_ended(failed)}", file=sys.stderr, flush=True)
        elif waited > PATIENCE:
            break
        elif waited > NOTICES and not asked:  # they wait for each other, say, before they train
            asked = True
            for process in ranks:
                process.terminate()
        time.sleep(0.05)
    failed = failed or next(filter(None, codes), 0)
    return failed if failed >= 0 else 128 - failed


def is_first_to_say(error: str) -> bool:
    """Whether none of the ranks that were started with this one here has printed this error."""
    if SAID not in os.environ:
        return True
    said = Path(os.environ[SAID], hashlib.sha256(error.encode()).hexdigest())
    with suppress(FileNotFoundError):  # what started them has ended
        try:
            said.touch(exist_ok=False)
        except FileExistsError:
            return False
    return True


def orphaned() -> bool:
    """Whether this process is a rank, and the process that has started it here has ended."""
    starter = os.environ.get(STARTER)
    return starter is not None and starter != str(os.getppid())
