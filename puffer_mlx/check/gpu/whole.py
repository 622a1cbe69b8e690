"""Item: rollouts with their environments in one launch."""

from typing import Any

import numpy as np

from puffer_mlx import config, vec
from puffer_mlx.check.gpu.tools import Effort, losses, need_gpu, require, trainer
from puffer_mlx.check.trajectories import compare

EXACT = ("squared", "connect4", "g2048")  # their arithmetic is of whole numbers
AGENTS = 512
LAUNCHES = 8
ROUNDING = 1e-3  # of breakout's sines and cosines


def one_launch(effort: Effort) -> str:
    """A GPU's environments do what the host's do, for the same actions, and are trained with."""
    need_gpu()
    rates = [_compared(env) for env in (*EXACT, "breakout")]
    with trainer("--train.rollout-device", "gpu-kernel", "--device", "gpu") as made:
        for _ in range(2):
            finite = np.isfinite([*losses(made.step()).values()])
            require(bool(finite.all()), "a loss isn't finite")
    return f"{AGENTS} agents: {', '.join(rates)}"


def _compared(env: str) -> str:
    sizes = ["--vec.total-agents", str(AGENTS), "--vec.num-buffers", "1"]
    settings = config.load(env, [*sizes, "--train.minibatch-size", str(AGENTS * 64)])

    def make() -> Any:
        return vec.make(settings, 1)

    found = compare(make, LAUNCHES)
    require(found is not None, f"{env} needs several launches")
    assert found is not None
    exact = found.equal == found.agents
    require(exact or env not in EXACT, f"{env}: other rows from step {found.first} on")
    require(found.difference <= ROUNDING, f"{env}: rows {found.difference:.2g} apart")
    return f"{env} {found.agents / found.seconds / 1e6:.1f} M steps/s"
