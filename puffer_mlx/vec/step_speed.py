"""How fast environments step on their own, without a policy."""

import time

import numpy as np

from puffer_mlx.vec.base import VecEnv
from puffer_mlx.vec.rows import allocate_rows, random_actions

_WARM_UP_SECONDS = 0.5
_ACTION_SETS = 16


def measure_stepping(vec: VecEnv, seconds: float = 5.0, seed: int = 0) -> dict[str, float]:
    """Step random actions for a while, all groups under way at once, waiting for them in turn.

    Actions are drawn beforehand, and each group writes the same rows every time, so nothing but
    stepping is measured. The first half second isn't counted.

    Args:
        vec: is reset, and left with no step under way.
        seconds: how long to measure, at least.
        seed: of the actions.

    Returns:
        ``steps_per_second`` (agent steps), ``seconds`` measured, ``steps``, ``busy_seconds``
        (thread-seconds inside the environments in that time), ``busy_ns_per_step``.
    """
    rng = np.random.default_rng(seed)
    n = vec.num_agents // vec.num_groups
    actions = [random_actions(vec, n, rng) for _ in range(_ACTION_SETS)]
    rows = [allocate_rows(vec, n) for _ in range(vec.num_groups)]
    vec.reset(allocate_rows(vec, vec.num_agents))

    def run(duration: float) -> tuple[int, float]:
        """Agent steps and seconds."""
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
    before = vec.busy_seconds()
    steps, elapsed = run(seconds)
    busy = vec.busy_seconds() - before
    return {
        "steps_per_second": steps / elapsed,
        "seconds": elapsed,
        "steps": float(steps),
        "busy_seconds": busy,
        "busy_ns_per_step": busy / steps * 1e9,
    }
