"""Estimates of the memory that a configuration needs, compared with the machine's.

They are compared before anything is allocated: C code and kernels can't report that memory ran out.
An estimate is a lower bound, so nothing that might fit is refused.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from puffer_mlx.config.key import INT_MAX
from puffer_mlx.config.option_names import how_to_set
from puffer_mlx.config.schema import Config
from puffer_mlx.config.schema.policy import OWN
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec

FLOAT = 4  # bytes
COPIES = 2  # weights, gradients
LAYER = 1000  # bytes of a layer's objects, whatever its size
VIEWS = 600  # bytes of the NumPy objects for one step of one buffer
GROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of Linux's control groups, 2 and 1


class Need(NamedTuple):
    """Minimum memory for one part of a run.

    Attributes:
        what: Part and the keys that make it large, for the message.
        size: Bytes.
        hint: Keys to lower.
    """

    what: str
    size: int
    hint: str


def machine_memory() -> int:
    """Return the bytes of memory this process may use: the machine's, or its container's."""
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
        path: The file.
        size: Bytes that would be read.

    Raises:
        UserError: The file is larger than the free memory.
    """
    if size > psutil.virtual_memory().available:
        raise UserError(
            f"{path} has {size / 1e9:.1f} GB, more than this machine's free memory",
            "name a file of weights that fits this machine",
        )


def refuse_policy(config: Config, spec: EnvSpec | None = None, copies: int = 1) -> None:
    """Refuse a policy that doesn't fit into memory.

    Args:
        config: Sections [policy] and [torch] are used.
        spec: The environment's; None before it is made.
        copies: Number of copies of the weights.

    Raises:
        UserError: It doesn't fit.
    """
    _refuse([_weights(config, spec, copies)], machine_memory())


def refuse_observations(name: str, space: Any, agents: int) -> None:
    """Refuse an observation space if one observation per agent doesn't fit into memory.

    Args:
        name: Name of the environment.
        space: Gymnasium space; spaces without a shape are accepted.
        agents: Number of agents.

    Raises:
        UserError: The observations don't fit.
    """
    if space.shape is not None and space.dtype is not None:
        size = agents * math.prod(space.shape) * space.dtype.itemsize
        what = f"{name}: observations of shape {space.shape} for {agents} agents make arrays"
        hint = f"choose fewer {how_to_set('vec.total_agents')}, or a smaller observation_space"
        _refuse([Need(what, size, hint)], machine_memory())


def refuse_step(spec: EnvSpec, agents: int, size: int) -> None:
    """Refuse environments if the arrays of one step don't fit into memory.

    Args:
        spec: The environment's.
        agents: Number of agents.
        size: Bytes of the arrays for one agent.

    Raises:
        UserError: They don't fit, or an agent's observation has more numbers than an array's
            dimension may have.
    """
    _refuse_dimension(f"{spec.name}: an agent's observation", spec.observation_size, "")
    what = f"{spec.name}: observations of {spec.observation_size} numbers and"
    what += f" {spec.action.logits} action logits for {agents} agents make arrays"
    hint = f"choose fewer {how_to_set('vec.total_agents')},"
    hint += " or a smaller observation or action space"
    copies = 2  # the environments', and the rows that a policy reads
    _refuse([Need(what, copies * agents * size, hint)], machine_memory())


def refuse_training(
    config: Config, spec: EnvSpec | None = None, kept: int = 1, gpu_memory: int = 0
) -> None:
    """Refuse a run whose rollouts, policy, optimizer and minibatches don't fit into memory.

    Args:
        config: A valid configuration.
        spec: The environment's; None before it is made.
        kept: Numbers in the optimizer's state for each weight.
        gpu_memory: Bytes of memory of the GPU that trains; 0 if it shares the machine's memory,
            or there is no GPU.

    Raises:
        UserError: They don't fit.
    """
    machine = machine_memory()
    vec, train, selfplay = config.vec, config.train, config.selfplay
    rollouts = _rollouts("vec.total_agents", vec.total_agents, config, spec)
    learner = [_weights(config, spec, COPIES + kept + _opponents(config)), _minibatch(config, spec)]
    steps = vec.total_agents * train.horizon
    if gpu_memory:
        _refuse(learner, gpu_memory, "the GPU")
        _refuse([rollouts], max(machine, gpu_memory))
    else:
        _refuse([rollouts, *learner], machine)
    _refuse_dimension("an epoch of vec.total_agents x train.horizon steps", steps, rollouts.hint)
    if config.facts.evaluates_apart and config.base.eval_episodes:
        agents = max(0, config.base.eval_agents)
        _refuse([_rollouts("base.eval_agents", agents, config, spec)], machine)
    if selfplay.eval_bot_games:
        agents = selfplay.eval_bot_envs
        what = f"selfplay.eval_bot_envs {agents} makes observations"
        size = agents * _observation_bytes(spec)
        _refuse([Need(what, size, f"choose fewer {how_to_set('selfplay.eval_bot_envs')}")], machine)


def refuse_state(size: int, gpu_memory: int = 0) -> None:
    """Refuse weights and optimizer state that don't fit into memory, before they are computed.

    Args:
        size: Bytes of their arrays.
        gpu_memory: Bytes of GPU memory; 0 to use the machine's memory.

    Raises:
        UserError: They don't fit.
    """
    what = "the policy makes weights and optimizer state"
    hint = f"choose a smaller {how_to_set('policy.hidden_size')}, another"
    hint += f" {how_to_set('torch.encoder')}, or smaller observations"
    where = "the GPU" if gpu_memory else "this machine"
    _refuse([Need(what, size, hint)], gpu_memory or machine_memory(), where)


def _weights(config: Config, spec: EnvSpec | None, copies: int) -> Need:
    """Count a policy's weights: the matrices of network, encoder and decoder that are known."""
    H, L, parts = config.policy.hidden_size, config.policy.num_layers, config.torch
    numbers = 0 if ":" in parts.network else L * H * H
    if parts.encoder == "DefaultEncoder":
        numbers += H * (spec.observation_size if spec else 1)
    numbers *= 2 if config.policy.separate_value else 1
    logits = spec.action.logits if spec and parts.decoder != OWN else 0
    numbers += H * logits
    what = f"policy.hidden_size {H} with policy.num_layers {L} makes weights"
    hidden_size = how_to_set("policy.hidden_size")
    hint = f"choose a smaller {hidden_size} or fewer {how_to_set('policy.num_layers')}"
    if logits > L * H:
        what = f"policy.hidden_size {H} with {logits} action logits makes weights"
        hint = f"choose a smaller {hidden_size}, or a smaller action space"
    hint += f", or a smaller {how_to_set('selfplay.max_size')}" if _opponents(config) else ""
    return Need(what, copies * (FLOAT * numbers + LAYER * L), hint)


def _minibatch(config: Config, spec: EnvSpec | None) -> Need:
    """Count the features and logits of a minibatch, which are 16-bit numbers at least."""
    M, H = config.train.minibatch_size, config.policy.hidden_size
    logits = spec.action.logits if spec else 0
    of_logits = f" and {logits} action logits" if logits > H else ""
    what = f"train.minibatch_size {M} with policy.hidden_size {H}{of_logits} computes numbers"
    hint = f"choose a smaller {how_to_set('train.minibatch_size')}"
    hint += f" or {how_to_set('policy.hidden_size')}"
    hint += ", or a smaller action space" if of_logits else ""
    return Need(what, M * (H + logits) * FLOAT // 2, hint)


def _opponents(config: Config) -> int:
    """Count the weights in self-play's pool at the run's end: the first, and each snapshot since.

    The newest snapshot may be the learner's own arrays, so it isn't counted.
    """
    selfplay = config.selfplay
    if not selfplay.enabled or not selfplay.snapshot_interval:
        return 0
    snapshots = config.train.total_timesteps // selfplay.snapshot_interval
    return min(selfplay.max_size - 1, snapshots)


def _rollouts(name: str, agents: int, config: Config, spec: EnvSpec | None) -> Need:
    """Count one rollout of ``agents`` agents; ``name``: the key that says how many there are."""
    T, Q = config.train.horizon, config.vec.num_buffers
    heads = spec.action.heads if spec else 1
    masks = spec.mask_size if spec else 0
    row = _observation_bytes(spec) + masks + (3 + heads) * FLOAT  # logprob, value, reward
    what = f"{name} {agents} with train.horizon {T} makes rollouts"
    hint = f"choose fewer {how_to_set(name)} or a shorter {how_to_set('train.horizon')}"
    return Need(what, T * (agents * row + Q * VIEWS), hint)


def _observation_bytes(spec: EnvSpec | None) -> int:
    return spec.observation_size * spec.observation_dtype.itemsize if spec else 1


def _refuse(needs: Iterable[Need], memory: int, where: str = "this machine") -> None:
    """Refuse needs whose sum exceeds ``memory``. The message names the largest one."""
    needs = list(needs)
    total = sum(need.size for need in needs)
    if total <= memory:
        return
    largest = max(needs, key=lambda need: need.size)
    needed = f"{_gigabytes(largest.size)} at least"
    if largest.size <= memory:
        needed += f", {_gigabytes(total)} with the rest of the run"
    message = f"{largest.what} of {needed}, and {where} has {_gigabytes(memory)}"
    raise UserError(message, largest.hint)


def _gigabytes(size: int) -> str:
    number = size / 1e9
    return f"{number:,.0f} GB" if number >= 10 else f"{number:.2g} GB"


def _refuse_dimension(what: str, size: int, hint: str) -> None:
    if size > INT_MAX:
        message = f"{what} has {size:,} numbers, more than an array's dimension may have"
        raise UserError(f"{message} ({INT_MAX:,})", hint or "choose a smaller observation_space")
