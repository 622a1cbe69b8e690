"""Collect rollouts step by step with a policy in C, and measure the speed of environments.

A step of a small policy through MLX takes a tenth of a millisecond for Python and graph building. A
direct call of a C function takes microseconds, like a step of a few environments.
"""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from puffer_mlx.vec.base import Collected, Rows, VecEnv
from puffer_mlx.vec.rows import allocate_rows, random_actions

AGENTS_PER_CALL = 64  # agents per call of the C function, as in envs/src/collect.h
_WARM_UP_SECONDS = 0.5  # unmeasured time at the start of ``measure_stepping``
_ACTION_SETS = 16  # arrays of random actions in ``measure_stepping``
ActFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)


def collect(
    vec: VecEnv,
    steps: int,
    act: tuple[int, int],
    actions: np.ndarray,
    out: Rows,
    spans: int = 0,
    threads: int = 1,
) -> Collected:
    """Collect a rollout step by step, from any environments, with a policy's step in C.

    While the policy acts for a group, the other groups may step.

    Args:
        vec: The environments, none of them stepping.
        steps: Number of steps T.
        act: Addresses of a C function, PufferAct of ``envs/src/vec.h``, and of its context.
        actions: (T, N, heads) float32, C-contiguous; the policy writes them.
        out: (T + 1, N, ...) rows; time 0 is input, the others are output.
        spans: Maximum number of time spans of acting to record.
        threads: Number of threads that act, each for some agents of a group.
    """
    N, Q = vec.num_agents, vec.num_groups
    groups = [slice(g * (N // Q), (g + 1) * (N // Q)) for g in range(Q)]
    function = partial(ActFunction(act[0]), act[1])
    recorded: list[tuple[int, int, float, float]] = []
    acting = 0.0
    busy = vec.busy_seconds()
    chunks = [_agent_chunks(agents) for agents in groups]
    pool = ThreadPoolExecutor(threads) if threads > 1 and len(chunks[0]) > 1 else None
    try:
        for t in range(steps):
            for g, agents in enumerate(groups):
                if t:
                    vec.wait(g)
                began = time.perf_counter()
                if pool is None:
                    for first, count in chunks[g]:
                        function(t, first, count)
                else:
                    list(pool.map(lambda chunk, t=t: function(t, *chunk), chunks[g]))
                ended = time.perf_counter()
                acting += ended - began
                if len(recorded) < spans:
                    recorded.append((0, agents.start, began, ended))
                vec.send(g, actions[t, agents], out.select(t + 1, agents))
        for g in range(Q):
            vec.wait(g)
    finally:
        if pool is not None:
            pool.shutdown()
    return Collected(acting, vec.busy_seconds() - busy, recorded)


def _agent_chunks(agents: slice) -> list[tuple[int, int]]:
    """Divide a group's agents into chunks for the policy: (first agent, number of agents) pairs."""
    return [
        (first, min(AGENTS_PER_CALL, agents.stop - first))
        for first in range(agents.start, agents.stop, AGENTS_PER_CALL)
    ]


def measure_stepping(vec: VecEnv, seconds: float = 5.0) -> dict[str, float]:
    """Measure how fast environments step with random actions, all groups at the same time.

    Actions are sampled in advance, and each group reuses its rows, so only stepping is measured.
    The first half second isn't counted.

    Args:
        vec: The environments. They are reset first, and have no step in progress at the end.
        seconds: Minimum duration of the measurement.

    Returns:
        ``steps_per_second`` (agent steps), ``seconds`` measured, ``steps``, ``busy_seconds``
        (thread-seconds inside the environments in that time), ``busy_ns_per_step``.
    """
    rng = np.random.default_rng(0)
    n = vec.num_agents // vec.num_groups
    actions = [random_actions(vec, n, rng) for _ in range(_ACTION_SETS)]
    rows = [allocate_rows(vec, n) for _ in range(vec.num_groups)]
    vec.reset(allocate_rows(vec, vec.num_agents))

    def run(duration: float) -> tuple[int, float]:
        """Step all environments with random actions for some seconds.

        Returns (agent steps, seconds).
        """
        rounds = 0
        start = time.perf_counter()
        for group in range(vec.num_groups):
            vec.send(group, actions[group % _ACTION_SETS], rows[group])
        while time.perf_counter() - start < duration:
            rounds += 1
            for group in range(vec.num_groups):
                vec.wait(group)
                vec.send(group, actions[(rounds + group) % _ACTION_SETS], rows[group])
        for group in range(vec.num_groups):
            vec.wait(group)
        return (rounds + 1) * vec.num_agents, time.perf_counter() - start

    run(_WARM_UP_SECONDS)
    busy_at_start = vec.busy_seconds()
    steps, elapsed = run(seconds)
    busy = vec.busy_seconds() - busy_at_start
    return {
        "steps_per_second": steps / elapsed,
        "seconds": elapsed,
        "steps": float(steps),
        "busy_seconds": busy,
        "busy_ns_per_step": busy / steps * 1e9,
    }
