"""Join the ranks that a launcher started, after a check that they were started alike."""

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
from puffer_mlx.distributed.launching import RING_HINT, backend, launched_rank, share_cores
from puffer_mlx.distributed.ranks import Ranks
from puffer_mlx.distributed.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.devices import kind
from puffer_mlx.system.version import describe_machine
from puffer_mlx.vec import source_folder
from puffer_mlx.vec.native.sources import sources_digest

TIMEOUT = 120.0  # seconds for all ranks to arrive
OF_A_MACHINE = {  # options that may differ between ranks: results don't depend on them
    *("base.checkpoint_dir", "base.log_dir", "vec.num_threads", "vec.max_threads"),
    *("vec.backend", "vec.timeout", "base.profile"),
}
VERSIONS = ("puffer_mlx", "MLX")


def init_distributed(
    config: Config, resumed: str = "none", timeout: float = TIMEOUT
) -> SingleProcess:
    """Join the ranks that a launcher started. Returns ``SINGLE_PROCESS`` without a launcher.

    Args:
        config: configuration of the run; must be the same on all ranks.
        resumed: name of the checkpoint to resume.
        timeout: seconds for all ranks to arrive. After that the process is ended.

    Raises:
        UserError: ranks can't be reached, or have other options or versions.
    """
    name = backend()
    if name is None:
        return SINGLE_PROCESS
    with _rendezvous_timeout(timeout, name):
        try:
            group = mx.distributed.init(strict=True, backend=name)
        except (RuntimeError, ValueError) as error:
            words = f"rank {launched_rank()} can't join: {str(error).splitlines()[0]}"
            hint = (
                f"this build of MLX has no {name} here: mlx.launch --backend ring works everywhere"
            )
            raise UserError(words, RING_HINT if name == "ring" else hint) from None
        if group.size() == 1:
            return SINGLE_PROCESS
        ranks = Ranks(group, config)
        all_facts = ranks.all_objects({**_facts(config), "checkpoint": resumed})
    for rank, facts in enumerate(all_facts[1:], start=1):
        if different := _first_difference(all_facts[0], facts):
            key, first, other = different
            raise UserError(
                f"rank 0 has {key} {first}, and rank {rank} has {other}",
                "start all ranks with the same options, files and versions",
            )
    if config.train.gpus not in (1, ranks.size):
        raise UserError(
            f"train.gpus is {config.train.gpus}, and {ranks.size} ranks were started",
            f"--train.gpus {ranks.size}, or leave it out",
        )
    ranks.local_config(config)  # raises UserError if the run can't be divided
    _connect(ranks, [facts["host"] for facts in all_facts])
    _share_cores(ranks.rank, all_facts)
    return ranks


def _share_cores(rank: int, all_facts: list[dict[str, Any]]) -> None:
    """Use a share of the cores, if all ranks of this machine may use the same ones."""
    mine = all_facts[rank]
    beside = [number for number, facts in enumerate(all_facts) if facts["host"] == mine["host"]]
    if all(all_facts[number]["cores"] == mine["cores"] for number in beside):
        share_cores(0, beside.index(rank), len(beside))


def _connect(ranks: Ranks, hosts: list[str]) -> None:
    """Connect the ranks by TCP, for heartbeats and small messages."""
    heartbeat = ranks.heartbeat
    where = {}
    if not ranks.rank:
        where = heartbeat.listen(ranks.size - 1, local=len(set(hosts)) == 1)
    address = json.loads(ranks.broadcast_text(json.dumps(where)))
    if not ranks.any(ranks.rank > 0 and not heartbeat.connect(address)):
        ranks.use_host_all_gather()
    elif not ranks.rank:
        verbosity.note(
            f"not all ranks reach port {address['port']} of rank 0: if one is lost, its number may"
            " not be known, and on GPUs each epoch takes longer",
            error=True,
        )


def _facts(config: Config) -> dict[str, Any]:
    """Return what must be the same on all ranks, and this rank's host and cores, by name."""
    versions = describe_machine()
    settings = {
        f"{section}.{key}": str(value)
        for section, keys in to_dict(config).items()
        if isinstance(keys, dict) and section != "sweep"
        for key, value in keys.items()
    }
    kept = {name: text for name, text in settings.items() if name not in OF_A_MACHINE}
    host = f"{platform.node()} {uuid.getnode()}"
    named = {name: versions[name] for name in VERSIONS}
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    place = {"host": host, "cores": cores}
    sources = "" if config.python else sources_digest(source_folder(config))
    alike = {"device": kind(mx.default_device()), "environment sources": sources}
    return {"env_name": config.env_name, **kept, **named, **alike, **place}


def _first_difference(
    first: Mapping[str, Any], other: Mapping[str, Any]
) -> tuple[str, Any, Any] | None:
    """Return the first name with different values, and both values, or None."""
    for name in dict.fromkeys([*first, *other]):
        one, two = first.get(name, "missing"), other.get(name, "missing")
        if one != two and name not in ("host", "cores"):
            return name, one, two
    return None


WATCH = """
import os, select, signal, sys
seconds, parent, text = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], seconds)[0]:
    os.write(2, text.encode())
    os.kill(parent, signal.SIGKILL)
"""


@contextmanager
def _rendezvous_timeout(timeout: float, name: str) -> Iterator[None]:
    """End the process if the block takes longer than ``timeout`` seconds.

    MLX waits forever for other ranks and holds Python's lock, so a thread couldn't end it. A helper
    process does.
    """
    error = (
        f"error: rank {launched_rank()} has waited {timeout:g} s for the others ({name})\n"
        "  hint: was each rank started, and do its addresses lead to it?\n"
    )
    words = program.python_command("-S", "-E", "-c", WATCH, str(timeout), str(os.getpid()), error)
    streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    # In a new session, so that Ctrl-C doesn't print its traceback.
    watch = subprocess.Popen(words, start_new_session=True, **streams)
    assert watch.stdin is not None
    try:
        yield
    finally:
        watch.stdin.close()  # ends the helper
        watch.wait()
