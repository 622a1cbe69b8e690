"""Compare environments stepped by a GPU with the same environments stepped by the host."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Policy as Settings
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
HIDDEN = 32


@dataclass
class TrajectoryComparison:
    """Differences between trajectories of the GPU and of the host.

    Attributes:
        agents: Number of agents.
        equal: Number of agents whose rows are all equal to the bit.
        steps: Steps of each agent.
        form: Description of the GPU's implementation.
        difference: Largest absolute difference. Each agent is compared up to its first unequal
            row, because its game may take another course after that.
        first: Step of the first difference of any agent, or None.
        ends: Number of episodes that ended.
        seconds: Median time to step all agents once.
    """

    agents: int
    equal: int
    steps: int
    form: str
    difference: float = 0.0
    first: int | None = None
    ends: int = 0
    seconds: float = 0.0


def compare(
    make: Callable[[], AbstractContextManager[Any]], rollouts: int, in_steps: bool = False
) -> TrajectoryComparison | None:
    """Step two equal sets of environments with actions sampled from a new policy.

    Args:
        make: Creates a set of ``NativeVec`` in one group, the same one for each call.
        rollouts: Number of rollouts, each of ``HORIZON`` steps.
        in_steps: Use a few launches per step on the GPU, even if one launch per rollout works.

    Returns:
        The comparison, or None if no GPU can step this number of environments
        (``rollouts_on_gpu``).
    """
    with make() as ours, make() as host:
        N = host.num_agents
        policy = make_policy(host.spec, Settings(hidden_size=HIDDEN, num_layers=1), Torch())
        choose = rollouts_in_steps if in_steps else rollouts_on_gpu
        kernel = choose(policy, ours, HORIZON)
        if kernel is None:
            return None
        weights = policy.init(mx.random.key(0))
        states = [policy.initial_state(N)]
        there = EnvironmentsOnGPU(ours, kernel)
        buffer = BufferOnGPU(host.spec, HORIZON, N, 1)
        device = mx.default_device()
        timer = PhaseTimer("", enabled=False)
        gpu = RolloutsOnGPU(kernel, lambda: [mx.default_stream(device)], timer)
        buffer.reset(there)
        rows = allocate_rows(host, N)
        host.reset(rows)
        same = np.ones(N, bool)
        times = []
        result = TrajectoryComparison(N, N, rollouts * HORIZON, kernel.description)
        for rollout in range(rollouts):
            buffer.begin(buffer)
            noise = policy.distribution.noise(mx.random.key(rollout), (HORIZON, N))
            mx.eval(weights, states, noise)
            began = time.perf_counter()
            states = gpu.collect(buffer, there, weights, states, noise)
            times.append(time.perf_counter() - began)
            fields = {k: np.array(a) for k, a in buffer.fields.items() if a is not None}
            for t in range(HORIZON):
                apart = _largest_differences(fields, t, rows)
                result.difference = max(result.difference, float(np.where(same, apart, 0).max()))
                same &= apart == 0
                if not same.all() and result.first is None:
                    result.first = rollout * HORIZON + t
                host.send(0, np.ascontiguousarray(fields["actions"][t]), rows)
                host.wait(0)
            result.ends += int(fields["terminals"].sum())
        result.equal = int(same.sum())
        result.seconds = float(np.median(times)) / HORIZON
        return result


def _largest_differences(fields: dict[str, np.ndarray], t: int, rows: Rows) -> np.ndarray:
    """Return each agent's largest absolute difference, (N,) float64, infinite for a NaN."""
    largest = np.zeros(len(rows.rewards))
    for name in ("observations", "rewards", "terminals", "masks"):
        if (theirs := getattr(rows, name)) is None:
            continue
        ours = fields[name][t]
        with np.errstate(invalid="ignore"):
            difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        difference = np.where(ours == theirs, 0, np.nan_to_num(difference, nan=np.inf))
        largest = np.maximum(largest, difference.reshape(len(largest), -1).max(1))
    return largest
