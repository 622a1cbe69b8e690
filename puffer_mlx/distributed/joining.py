"""Connect the ranks that a launcher started, and check that all have the same options."""

import json
import os
import platform
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.writing import to_dict
from puffer_mlx.distributed.launching import (
    RING_HINT,
    assign_cores,
    launched_rank,
    launcher_backend,
)
from puffer_mlx.distributed.ranks import Ranks
from puffer_mlx.distributed.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.devices import kind
from puffer_mlx.system.version import describe_machine
from puffer_mlx.vec import source_folder
from puffer_mlx.vec.native.sources import sources_digest

CONNECT_TIMEOUT = 120.0  # seconds for all ranks to connect
LOCAL_OPTIONS = {  # may differ between ranks, since results don't depend on them
    "base.checkpoint_dir",
    "base.log_dir",
    "base.profile",
    "vec.backend",
    "vec.max_threads",
    "vec.num_threads",
    "vec.timeout",
}
VERSIONED = ("puffer_mlx", "MLX")  # programs whose versions must be the same on all ranks


def init_distributed(
    config: Config, resumed: str = "none", timeout: float = CONNECT_TIMEOUT
) -> SingleProcess:
    """Connect this process with the other ranks that a launcher started.

    Args:
        config: Configuration of the run, the same on all ranks.
        resumed: Name of the checkpoint to resume, compared between the ranks.
        timeout: Seconds for all ranks to connect; after that this process is killed.

    Returns:
        This process's rank, or ``SINGLE_PROCESS`` without a launcher.

    Raises:
        UserError: Ranks can't be reached, or they have different options or versions.
    """
    name = launcher_backend()
    if name is None:
        return SINGLE_PROCESS
    with _rendezvous_timeout(timeout, name):
        try:
            group = mx.distributed.init(strict=True, backend=name)
        except (RuntimeError, ValueError) as error:
            message = f"rank {launched_rank()} can't join: {str(error).splitlines()[0]}"
            hint = RING_HINT
            if name != "ring":
                hint = (
                    f"this build of MLX has no {name} here:"
                    " mlx.launch --backend ring works everywhere"
                )
            raise UserError(message, hint) from None
        if group.size() == 1:
            return SINGLE_PROCESS
        ranks = Ranks(group, config)
        all_facts = ranks.all_objects({**_facts(config), "checkpoint": resumed})
    for rank, facts in enumerate(all_facts[1:], start=1):
        if different := _first_difference(all_facts[0], facts):
            key, first, other = different
            raise UserError(
                f"rank 0 has {key} {first}, but rank {rank} has {other}",
                "start all ranks with the same options, files and versions",
            )
    if config.train.gpus not in (1, ranks.size):
        raise UserError(
            f"train.gpus is {config.train.gpus}, and {ranks.size} ranks were started",
            f"--train.gpus {ranks.size}, or leave it out",
        )
    ranks.local_config(config)  # raises UserError if the run can't be divided
    _connect(ranks, [facts["host"] for facts in all_facts])
    _divide_cores(ranks.rank, all_facts)
    return ranks


def _divide_cores(rank: int, all_facts: list[dict[str, Any]]) -> None:
    """Give each rank of this machine a part of the CPU cores, unless the launcher has done it.

    Args:
        rank: Number of this rank.
        all_facts: Facts of each rank (``_facts``).
    """
    mine = all_facts[rank]
    neighbors = [each for each, facts in enumerate(all_facts) if facts["host"] == mine["host"]]
    all_share_cores = all(all_facts[each]["cores"] == mine["cores"] for each in neighbors)
    if all_share_cores:  # after a division each rank would have different cores
        assign_cores(0, neighbors.index(rank), len(neighbors))


def _connect(ranks: Ranks, hosts: list[str]) -> None:
    """Connect the ranks by TCP, for heartbeats and small messages."""
    heartbeat = ranks.heartbeat
    is_first = ranks.rank == 0
    address = {}
    if is_first:
        address = heartbeat.listen(ranks.size - 1, local=len(set(hosts)) == 1)
    address = json.loads(ranks.broadcast_text(json.dumps(address)))
    has_failed = not is_first and not heartbeat.connect(address)
    if not ranks.any(has_failed):
        ranks.use_host_all_gather()
    elif is_first:
        verbosity.note(
            f"not all ranks can reach port {address['port']} of rank 0: errors may not name the"
            " rank that is lost, and on GPUs each epoch takes longer",
            error=True,
        )


def _facts(config: Config) -> dict[str, Any]:
    """Return facts about this rank by name, which are compared between the ranks.

    They are options, versions and the device, which must be the same on all ranks, and the host and
    cores, which may differ.
    """
    versions = describe_machine()
    settings = {
        f"{section}.{key}": str(value)
        for section, keys in to_dict(config).items()
        if isinstance(keys, dict) and section != "sweep"
        for key, value in keys.items()
    }
    facts: dict[str, Any] = {"env_name": config.env_name}
    facts |= {name: text for name, text in settings.items() if name not in LOCAL_OPTIONS}
    facts |= {name: versions[name] for name in VERSIONED}
    facts["device"] = kind(mx.default_device())
    facts["environment sources"] = "" if config.python else sources_digest(source_folder(config))
    facts["host"] = f"{platform.node()} {uuid.getnode()}"
    has_affinity = hasattr(os, "sched_getaffinity")
    facts["cores"] = sorted(os.sched_getaffinity(0)) if has_affinity else []
    return facts


def _first_difference(
    first: Mapping[str, Any], other: Mapping[str, Any]
) -> tuple[str, Any, Any] | None:
    """Return the first fact that differs between two ranks: its name and both values; else None.

    Args:
        first: Facts of one rank (``_facts``).
        other: Facts of another rank.
    """
    for name in dict.fromkeys([*first, *other]):
        first_value = first.get(name, "missing")
        other_value = other.get(name, "missing")
        if first_value != other_value and name not in ("host", "cores"):
            return name, first_value, other_value
    return None


# Program of a helper process: kill the process argv[2] with the message argv[3], unless standard
# input is closed within argv[1] seconds.
KILL_AFTER_TIMEOUT = """
import os, select, signal, sys
seconds, parent, text = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], seconds)[0]:
    os.write(2, text.encode())
    os.kill(parent, signal.SIGKILL)
"""


@contextmanager
def _rendezvous_timeout(timeout: float, name: str) -> Iterator[None]:
    """Kill this process if a ``with`` block, which waits for other ranks, takes too long.

    MLX waits forever and holds Python's lock, so a thread couldn't kill the process. A helper
    process does it.

    Args:
        timeout: Seconds after which the process is killed.
        name: MLX backend, for the message.
    """
    error = (
        f"error: rank {launched_rank()} has waited {timeout:g} s for the others ({name})\n"
        "  hint: check that each rank was started and that its addresses are right\n"
    )
    command = program.python_command(
        "-S", "-E", "-c", KILL_AFTER_TIMEOUT, str(timeout), str(os.getpid()), error
    )
    streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    # In a new session: at Ctrl-C the helper must not print a traceback.
    helper = subprocess.Popen(command, start_new_session=True, **streams)
    assert helper.stdin is not None
    try:
        yield
    finally:
        helper.stdin.close()  # ends the helper
        helper.wait()
