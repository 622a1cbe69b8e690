"""What a launcher says to a process that it started, in its environment; without MLX."""

import os

from puffer_mlx.errors import UserError

BACKENDS = {  # which variable says that it is this one
    "ring": "MLX_HOSTFILE",
    "nccl": "NCCL_HOST_IP",
    "jaccl": "MLX_JACCL_COORDINATOR",
}
MPI_RANK = "OMPI_COMM_WORLD_RANK"


def backend() -> str | None:
    """The backend that this process is to join its ranks by; None: it is started alone.

    Raises:
        UserError: it is a rank, and nothing says how to reach the others.
    """
    if "MLX_RANK" not in os.environ:
        return "mpi" if MPI_RANK in os.environ else None
    found = next((name for name, said in BACKENDS.items() if os.environ.get(said)), None)
    if found is None:
        raise UserError(
            f"MLX_RANK is {os.environ['MLX_RANK']}, and none of {', '.join(BACKENDS.values())} says"
            " how to reach the other ranks",
            "start ranks by mlx.launch, or unset MLX_RANK",
        )
    return None if found == "ring" and _is_empty(os.environ["MLX_HOSTFILE"]) else found


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
