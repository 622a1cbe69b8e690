"""Estimate the memory that a configuration needs, and refuse it if the machine has less.

This happens before anything is allocated, because C code and kernels can't report that memory ran
out. An estimate is a lower bound, so nothing that might fit is refused.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from puffer_mlx.config.key import INT_MAX
from puffer_mlx.config.option_names import how_to_set
from puffer_mlx.config.schema import Config
from puffer_mlx.config.schema.policy import CUSTOM_MODULE
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec

FLOAT_BYTES = 4
TRAINED_COPIES = 2  # weights and gradients
LAYER_BYTES = 1000  # Python objects of a layer of any size
VIEW_BYTES = 600  # NumPy objects for one step of one buffer
CGROUP_FOLDER = Path("/sys/fs/cgroup")
CGROUP_LIMIT_FILES = "memory.max", "memory/memory.limit_in_bytes"  # of version 2 and version 1


class Need(NamedTuple):
    """Estimated memory of one component of a run, such as its rollouts, for a message.

    Attributes:
        cause: Keys and the component that they make large: the message's text before the size, such
            as "vec.total_agents 4096 with train.horizon 64 makes rollouts".
        size: Minimum number of bytes.
        hint: Keys to lower.
    """

    cause: str
    size: int
    hint: str


def machine_memory() -> int:
    """Return the memory in bytes that this process may use: the machine's or its container's."""
    total = psutil.virtual_memory().total
    for name in CGROUP_LIMIT_FILES:
        try:
            total = min(total, int((CGROUP_FOLDER / name).read_text()))
        except (OSError, ValueError):  # no such limit, or the word "max"
            continue
    return total


def refuse_large_file(path: Path, size: int) -> None:
    """Raise a UserError, before reading a file, if its size exceeds the free memory.

    Args:
        path: The file.
        size: Bytes to read.
    """
    if size > psutil.virtual_memory().available:
        raise UserError(
            f"{path} has {size / 1e9:.1f} GB, more than this machine's free memory",
            "use a smaller file of weights",
        )


def refuse_large_policy(config: Config, spec: EnvSpec | None = None, copies: int = 1) -> None:
    """Raise a UserError if a policy's weights don't fit into memory.

    Args:
        config: Configuration with the sections [policy] and [torch].
        spec: Environment's spec; None before the environment is made.
        copies: Number of copies of the weights.
    """
    _refuse_needs([_weights_need(config, spec, copies)], machine_memory())


def refuse_large_observations(name: str, space: Any, agents: int) -> None:
    """Raise a UserError if one observation per agent doesn't fit into memory.

    Args:
        name: Name of the environment.
        space: Gymnasium's observation space; spaces without a shape are accepted.
        agents: Number of agents.
    """
    if space.shape is not None and space.dtype is not None:
        size = agents * math.prod(space.shape) * space.dtype.itemsize
        what = f"{name}: observations of shape {space.shape} for {agents} agents make arrays"
        hint = f"choose fewer {how_to_set('vec.total_agents')}, or a smaller observation_space"
        _refuse_needs([Need(what, size, hint)], machine_memory())


def refuse_large_step(spec: EnvSpec, agents: int, size: int) -> None:
    """Raise a UserError if the environments' arrays for one step don't fit into memory.

    Args:
        spec: Environment's spec.
        agents: Number of agents.
        size: Bytes of the arrays for one agent.

    Raises:
        UserError: If they don't fit, or an observation exceeds the maximum size of an array.
    """
    smaller = "choose a smaller observation_space"
    _refuse_dimension(f"{spec.name}: an agent's observation", spec.observation_size, smaller)
    what = f"{spec.name}: observations of {spec.observation_size} numbers and"
    what += f" {spec.action.logits} action logits for {agents} agents make arrays"
    hint = f"choose fewer {how_to_set('vec.total_agents')},"
    hint += " or a smaller observation or action space"
    copies = 2  # in the environments, and in the policy's inputs
    _refuse_needs([Need(what, copies * agents * size, hint)], machine_memory())


def refuse_large_training(
    config: Config, spec: EnvSpec | None = None, state_copies: int = 1, gpu_memory: int = 0
) -> None:
    """Raise a UserError if rollouts, policy, optimizer and minibatches don't fit into memory.

    Args:
        config: Valid configuration.
        spec: Environment's spec; None before the environment is made.
        state_copies: Size of the optimizer's state, in copies of the weights.
        gpu_memory: Bytes of memory of the GPU that trains; 0 if it shares the machine's memory,
            or without a GPU.
    """
    memory = machine_memory()
    vec, train, selfplay = config.vec, config.train, config.selfplay
    rollouts = _rollout_need("vec.total_agents", vec.total_agents, config, spec)
    steps = vec.total_agents * train.horizon
    learner = [
        _weights_need(config, spec, TRAINED_COPIES + state_copies + _pool_entries(config)),
        _minibatch_need(config, spec),
    ]
    if gpu_memory:
        _refuse_needs(learner, gpu_memory, "the GPU")
        # Rollouts are in either memory: the larger one is the lower bound.
        _refuse_needs([rollouts], max(memory, gpu_memory))
    else:
        _refuse_needs([rollouts, *learner], memory)
    _refuse_dimension("an epoch of vec.total_agents x train.horizon steps", steps, rollouts.hint)
    if config.facts.evaluates_apart and config.base.eval_episodes:
        agents = max(0, config.base.eval_agents)
        _refuse_needs([_rollout_need("base.eval_agents", agents, config, spec)], memory)
    if selfplay.eval_bot_games:
        agents = selfplay.eval_bot_envs
        what = f"selfplay.eval_bot_envs {agents} makes observations"
        size = agents * _observation_bytes(spec)
        hint = f"choose fewer {how_to_set('selfplay.eval_bot_envs')}"
        _refuse_needs([Need(what, size, hint)], memory)


def refuse_large_state(size: int, gpu_memory: int = 0) -> None:
    """Raise a UserError if weights and optimizer state don't fit into memory.

    Args:
        size: Bytes of the weights and the optimizer state together.
        gpu_memory: Bytes of GPU memory; 0 to use the machine's memory.
    """
    what = "the policy makes weights and optimizer state"
    hint = f"choose a smaller {how_to_set('policy.hidden_size')}, another"
    hint += f" {how_to_set('torch.encoder')}, or smaller observations"
    device = "the GPU" if gpu_memory else "this machine"
    _refuse_needs([Need(what, size, hint)], gpu_memory or machine_memory(), device)


def _weights_need(config: Config, spec: EnvSpec | None, copies: int) -> Need:
    """Return an estimate of the memory of a policy's weights; custom parts of it aren't counted."""
    H, L, classes = config.policy.hidden_size, config.policy.num_layers, config.torch
    weights = 0 if ":" in classes.network else L * H * H
    if classes.encoder == "DefaultEncoder":
        weights += H * (spec.observation_size if spec else 1)
    weights *= 2 if config.policy.separate_value else 1
    logits = spec.action.logits if spec and classes.decoder != CUSTOM_MODULE else 0
    weights += H * logits
    what = f"policy.hidden_size {H} with policy.num_layers {L} makes weights"
    hidden_size = how_to_set("policy.hidden_size")
    hint = f"choose a smaller {hidden_size} or fewer {how_to_set('policy.num_layers')}"
    if logits > L * H:
        what = f"policy.hidden_size {H} with {logits} action logits makes weights"
        hint = f"choose a smaller {hidden_size}, or a smaller action space"
    hint += f", or a smaller {how_to_set('selfplay.max_size')}" if _pool_entries(config) else ""
    return Need(what, copies * (FLOAT_BYTES * weights + LAYER_BYTES * L), hint)


def _minibatch_need(config: Config, spec: EnvSpec | None) -> Need:
    """Return an estimate of the memory of a minibatch's features and logits in 16 bits."""
    M, H = config.train.minibatch_size, config.policy.hidden_size
    logits = spec.action.logits if spec else 0
    logits_text = f" and {logits} action logits" if logits > H else ""
    what = f"train.minibatch_size {M} with policy.hidden_size {H}{logits_text} computes numbers"
    hint = f"choose a smaller {how_to_set('train.minibatch_size')}"
    hint += f" or {how_to_set('policy.hidden_size')}"
    hint += ", or a smaller action space" if logits_text else ""
    return Need(what, M * (H + logits) * FLOAT_BYTES // 2, hint)


def _pool_entries(config: Config) -> int:
    """Return how many copies of the weights the pool of opponents in self-play has at a run's end.

    These are the initial weights and the snapshots. The newest snapshot isn't counted, because it
    may share the learner's arrays.
    """
    selfplay = config.selfplay
    if not selfplay.enabled or not selfplay.snapshot_interval:
        return 0
    snapshots = config.train.total_timesteps // selfplay.snapshot_interval
    return min(selfplay.max_size - 1, snapshots)


def _rollout_need(name: str, agents: int, config: Config, spec: EnvSpec | None) -> Need:
    """Return an estimate of the memory of one rollout.

    ``name`` is the key that sets the number of agents, for the message.
    """
    T, Q = config.train.horizon, config.vec.num_buffers
    heads = spec.action.heads if spec else 1
    masks = spec.mask_size if spec else 0
    row = _observation_bytes(spec) + masks + (3 + heads) * FLOAT_BYTES  # logprob, value, reward
    what = f"{name} {agents} with train.horizon {T} makes rollouts"
    hint = f"choose fewer {how_to_set(name)} or a shorter {how_to_set('train.horizon')}"
    return Need(what, T * (agents * row + Q * VIEW_BYTES), hint)


def _observation_bytes(spec: EnvSpec | None) -> int:
    return spec.observation_size * spec.observation_dtype.itemsize if spec else 1


def _refuse_needs(needs: Iterable[Need], memory: int, device: str = "this machine") -> None:
    """Raise a UserError if a run's components together need more memory than available.

    The message names the component that needs most.

    Args:
        needs: Needs of components that are in memory at the same time.
        memory: Available bytes.
        device: The memory's owner, for the message.
    """
    needs = list(needs)
    total = sum(need.size for need in needs)
    if total <= memory:
        return
    largest = max(needs, key=lambda need: need.size)
    needed = f"{_gigabytes(largest.size)} at least"
    if largest.size <= memory:
        needed += f", {_gigabytes(total)} with the rest of the run"
    message = f"{largest.cause} of {needed}, and {device} has {_gigabytes(memory)}"
    raise UserError(message, largest.hint)


def _gigabytes(size: int) -> str:
    gigabytes = size / 1e9
    return f"{gigabytes:,.0f} GB" if gigabytes >= 10 else f"{gigabytes:.2g} GB"


def _refuse_dimension(what: str, size: int, hint: str) -> None:
    """Raise a UserError if an array dimension would be longer than MLX allows."""
    if size > INT_MAX:
        message = f"{what} has {size:,} numbers, more than an array's dimension may have"
        raise UserError(f"{message} ({INT_MAX:,})", hint)
