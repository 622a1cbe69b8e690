"""The least memory that a configuration needs, compared with what the machine has.

It is compared before any of it is allocated: C code and kernels can't report that there wasn't
enough. What is counted is less than what is needed, so nothing that might work is refused.
"""

import math
from pathlib import Path
from typing import Any

import psutil

from puffer_mlx.config.schema import Config
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec

FLOAT = 4  # bytes
COPIES = 2  # weights, gradients
LAYER = 1000  # bytes of a layer's objects, whatever its size
GROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of Linux's control groups, 2 and 1


def machine_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or its container's."""
    total = psutil.virtual_memory().total
    for name in LIMITS:
        try:
            total = min(total, int((GROUPS / name).read_text()))
        except (OSError, ValueError):  # no such limit, or the word "max"
            continue
    return total


def refuse_file(path: Path, size: int) -> None:
    """Refuse to read a file that doesn't fit into memory.

    Args:
        path: the file.
        size: bytes that would be read.

    Raises:
        UserError: they are more than what is free.
    """
    if size > psutil.virtual_memory().available:
        raise UserError(
            f"{path} has {size / 1e9:.1f} GB, more than this machine's free memory",
            "name a file of weights that fits this machine",
        )


def refuse_policy(config: Config, size: int = 1, copies: int = 1) -> None:
    """Refuse a policy that doesn't fit into memory.

    Args:
        config: sections [policy] and [torch] count.
        size: of an observation, flat.
        copies: of the weights.

    Raises:
        UserError: it doesn't fit.
    """
    H, L, parts = config.policy.hidden_size, config.policy.num_layers, config.torch
    numbers = 0 if ":" in parts.network else L * H * H
    numbers += H * size if parts.encoder == "DefaultEncoder" else 0
    numbers *= 2 if config.policy.separate_value else 1
    what = f"policy.hidden_size {H} with policy.num_layers {L} makes weights"
    hint = "choose a smaller policy.hidden_size or fewer policy.num_layers"
    hint += ", or a smaller selfplay.max_size" if _opponents(config) else ""
    _refuse(what, copies * (FLOAT * numbers + LAYER * L), hint)


def refuse_observations(name: str, space: Any, agents: int) -> None:
    """Refuse observations of which not even one of each agent fits into memory.

    Args:
        name: the environment's.
        space: of Gymnasium's; those of several parts are not looked at.
        agents: how many there are.

    Raises:
        UserError: they don't fit.
    """
    if space.shape is not None and space.dtype is not None:
        size = agents * math.prod(space.shape) * space.dtype.itemsize
        what = f"{name}: observations of shape {space.shape} for {agents} agents make arrays"
        _refuse(what, size, "choose fewer vec.total_agents, or a smaller observation_space")


def refuse_training(config: Config, spec: EnvSpec | None = None, kept: int = 1) -> None:
    """Refuse what doesn't fit into memory: a rollout, a minibatch, weights and optimizer.

    Args:
        config: a valid configuration.
        spec: of its environment; None before it is made.
        kept: numbers that the optimizer's state has for each weight.

    Raises:
        UserError: it doesn't fit.
    """
    size = spec.observation_size if spec else 1
    refuse_policy(config, size, COPIES + kept + _opponents(config))
    _refuse_rollouts("vec.total_agents", config.vec.total_agents, config, spec)
    if config.facts.evaluates_apart and config.base.eval_episodes:
        _refuse_rollouts("base.eval_agents", max(0, config.base.eval_agents), config, spec)
    train, H = config.train, config.policy.hidden_size
    what = (
        f"train.minibatch_size {train.minibatch_size} with policy.hidden_size {H} computes numbers"
    )
    hint = "choose a smaller train.minibatch_size or policy.hidden_size"
    _refuse(what, train.minibatch_size * H * FLOAT // 2, hint)  # half in half precision


def _opponents(config: Config) -> int:
    """Self-play's pool at the run's end: the first weights and a copy for each interval since.

    The newest copy may be the learner's own arrays, so it isn't counted.
    """
    selfplay = config.selfplay
    if not selfplay.enabled or not selfplay.snapshot_interval:
        return 0
    snapshots = config.train.total_timesteps // selfplay.snapshot_interval
    return min(selfplay.max_size - 1, snapshots)


def _refuse_rollouts(name: str, agents: int, config: Config, spec: EnvSpec | None) -> None:
    """Refuse rollouts of so many agents, as the key ``name`` says."""
    observation = spec.observation_size * spec.observation_dtype.itemsize if spec else 1
    row = observation + 4 * FLOAT  # and an action, its logprob, the value, the reward
    what = f"{name} {agents} with train.horizon {config.train.horizon} makes rollouts"
    hint = f"choose fewer {name} or a shorter train.horizon"
    _refuse(what, agents * config.train.horizon * row, hint)


def _refuse(what: str, size: int, hint: str) -> None:
    if size > (there := machine_memory()):
        needed = f"{size / 1e9:,.0f} GB at least"
        raise UserError(f"{what} of {needed}, and this machine has {there / 1e9:,.0f} GB", hint)
