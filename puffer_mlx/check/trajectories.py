"""Compare trajectories of environments on a GPU with those of equal environments on the host."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Policy as PolicySettings
from puffer_mlx.config import Torch
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.on_gpu import (
    BufferOnGPU,
    EnvironmentsOnGPU,
    RolloutsOnGPU,
    rollouts_in_steps,
    rollouts_on_gpu,
)
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.rows import allocate_rows

HORIZON = 64  # steps per rollout
HIDDEN = 32  # units of the policy's layer


@dataclass
class TrajectoryComparison:
    """Differences between the trajectories of environments on the GPU and on the host.

    Attributes:
        agents: Number of agents.
        equal: Number of agents whose trajectories are equal to the bit.
        steps: Steps of each agent.
        description: Text that says how the GPU steps the environments.
        difference: Largest absolute difference. Each agent is compared up to its first unequal
            row only, because later rows may belong to a different game.
        first_difference: Step of the first difference of any agent, or None.
        ends: Number of episodes that ended.
        seconds: Median time to step all agents once.
    """

    agents: int
    equal: int
    steps: int
    description: str
    difference: float = 0.0
    first_difference: int | None = None
    ends: int = 0
    seconds: float = 0.0


def compare_trajectories(
    make: Callable[[], AbstractContextManager[Any]], rollouts: int, in_steps: bool = False
) -> TrajectoryComparison | None:
    """Step environments on the GPU and on the host with the same actions, and compare the rows.

    A policy with initial weights samples the actions on the GPU.

    Args:
        make: Creates a ``NativeVec`` with one group. All calls create equal environments.
        rollouts: Number of rollouts, each of ``HORIZON`` steps.
        in_steps: Use a few launches per step on the GPU, even if one launch per rollout works.

    Returns:
        The comparison, or None for environments that GPUs can't step (``rollouts_on_gpu``).
    """
    with make() as gpu_vec, make() as host_vec:
        N = host_vec.num_agents
        policy = make_policy(
            host_vec.spec, PolicySettings(hidden_size=HIDDEN, num_layers=1), Torch()
        )
        choose_kernel = rollouts_in_steps if in_steps else rollouts_on_gpu
        kernel = choose_kernel(policy, gpu_vec, HORIZON)
        if kernel is None:
            return None
        weights = policy.init(mx.random.key(0))
        states = [policy.initial_state(N)]
        device_environments = EnvironmentsOnGPU(gpu_vec, kernel)
        buffer = BufferOnGPU(host_vec.spec, HORIZON, N, 1)
        device = mx.default_device()
        timer = PhaseTimer("", enabled=False)
        gpu = RolloutsOnGPU(kernel, lambda: [mx.default_stream(device)], timer)
        buffer.reset(device_environments)
        rows = allocate_rows(host_vec, N)
        host_vec.reset(rows)
        equal = np.ones(N, bool)
        times = []
        result = TrajectoryComparison(N, N, rollouts * HORIZON, kernel.description)
        for rollout in range(rollouts):
            buffer.begin(buffer)  # continue from the buffer's last rows
            noise = policy.distribution.noise(mx.random.key(rollout), (HORIZON, N))
            mx.eval(weights, states, noise)
            began = time.perf_counter()
            states = gpu.collect(buffer, device_environments, weights, states, noise)
            times.append(time.perf_counter() - began)
            fields = {name: np.array(a) for name, a in buffer.fields.items() if a is not None}
            for t in range(HORIZON):
                differences = _largest_differences(fields, t, rows)
                result.difference = max(
                    result.difference, float(np.where(equal, differences, 0).max())
                )
                equal &= differences == 0
                if not equal.all() and result.first_difference is None:
                    result.first_difference = rollout * HORIZON + t
                host_vec.send(0, np.ascontiguousarray(fields["actions"][t]), rows)
                host_vec.wait(0)
            result.ends += int(fields["terminals"].sum())
        result.equal = int(equal.sum())
        result.seconds = float(np.median(times)) / HORIZON
        return result


def _largest_differences(fields: dict[str, np.ndarray], t: int, rows: Rows) -> np.ndarray:
    """Return the largest difference of each agent's rows between GPU and host in one step.

    Args:
        fields: Rollout buffer of the GPU, arrays (T, N, ...) by name.
        t: Step to compare.
        rows: Rows of the host at this step.

    Returns:
        Absolute differences, (N,) float64, infinite for a NaN.
    """
    largest = np.zeros(len(rows.rewards))
    for name in ("observations", "rewards", "terminals", "masks"):
        if (host_values := getattr(rows, name)) is None:
            continue
        gpu_values = fields[name][t]
        with np.errstate(invalid="ignore"):
            difference = np.abs(gpu_values.astype(np.float64) - host_values.astype(np.float64))
        difference = np.where(gpu_values == host_values, 0, np.nan_to_num(difference, nan=np.inf))
        largest = np.maximum(largest, difference.reshape(len(largest), -1).max(1))
    return largest
