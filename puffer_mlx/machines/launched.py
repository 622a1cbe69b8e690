"""What a launcher says to a process that it started, in its environment; without MLX."""

import json
import os
from pathlib import Path

from puffer_mlx.errors import UserError

BACKENDS = {  # which variable says that it is this one
    "ring": "MLX_HOSTFILE",
    "nccl": "NCCL_HOST_IP",
    "jaccl": "MLX_JACCL_COORDINATOR",
}
MPI_RANK = "OMPI_COMM_WORLD_RANK"
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
    said = os.environ["MLX_RANK"]
    if not said.isdecimal():
        words = f"MLX_RANK is {said!r}, not a rank's number: 0, 1, ..."
        raise UserError(words, "start ranks by mlx.launch, or unset MLX_RANK")
    name = next((name for name, key in BACKENDS.items() if os.environ.get(key)), None)
    if name is None:
        raise UserError(
            f"MLX_RANK is {said}, and none of {', '.join(BACKENDS.values())} says"
            " how to reach the other ranks",
            "start ranks by mlx.launch, or unset MLX_RANK",
        )
    if name == "ring":
        path = os.environ["MLX_HOSTFILE"]
        if _is_empty(path):
            return None
        if wrong := _wrong_hosts(path, int(said)):
            raise UserError(f"rank {said} can't join: MLX_HOSTFILE {wrong}", RING_HINT)
    return name


def _wrong_hosts(path: str, rank: int) -> str:
    """What is wrong with a host file for this rank; empty if nothing is."""
    if not os.path.isfile(path):
        return f"{path!r} is no file"
    try:
        hosts = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        hosts = None
    if not isinstance(hosts, list):
        return f"{path} is no list of each rank's addresses"
    return f"{path} has no rank {rank}: it lists {len(hosts)}" if rank >= len(hosts) else ""


def _is_empty(path: str) -> bool:
    """Whether a host file lists no ranks: ``mlx.launch -n 1`` writes such a one."""
    return os.path.isfile(path) and os.path.getsize(path) < 2


def started() -> bool:
    """Whether a launcher has started this process."""
    return "MLX_RANK" in os.environ or MPI_RANK in os.environ


def rank_said() -> int:
    """Which rank a launcher says that this is; 0 without one."""
    said = os.environ.get("MLX_RANK") or os.environ.get(MPI_RANK, "0")
    return int(said) if said.isdecimal() else 0
