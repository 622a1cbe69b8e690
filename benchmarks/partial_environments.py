"""Gymnasium environments with partial observations, which need memory of earlier observations.

Each function creates an environment, for any trainer:

    python scripts/train.py benchmarks/partial_environments.py:t_maze --env.length 20

| task | to remember | best return | without memory |
| --- | --- | --- | --- |
| ``memory`` | a cue, until the end of the episode | 1 | 0.5 |
| ``t_maze`` | a cue, through a corridor | 4 | 1.95 |
| ``cartpole_without_velocity`` | previous positions of cart and pole | 500 | less |
| ``pendulum_without_velocity`` | previous angles of the pendulum | about -150 | less |
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformObservation


class Memory(gymnasium.Env):
    """Remember a cue: the first observation is -1 or 1, all others are 0. As ``envs/memory``.

    The reward is 1 if the last action of an episode is 0 for the cue -1 or 1 for the cue 1.

    Args:
        length: Actions per episode.
    """

    observation_space = Box(-1, 1, (1,))
    action_space = Discrete(2)

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.cue, self.tick = 2 * int(self.np_random.integers(2)) - 1, 0
        return np.array([self.cue], np.float32), {}

    def step(self, action: int):
        self.tick += 1
        ended = self.tick >= self.length
        reward = float(ended and action == (self.cue > 0))
        return np.zeros(1, np.float32), reward, ended, False, {}


class TMaze(gymnasium.Env):
    """The T-maze of Bakker (2002), "Reinforcement Learning with Long Short-Term Memory", NIPS 14.

    A corridor leads east to a junction. The goal is in its northern or southern arm. An observation
    has three numbers, walls in Bakker's drawing: 0 1 1 (goal in the north) or 1 1 0 (in the south)
    at the start, 1 0 1 in the corridor, 0 1 0 at the junction. Only the start shows where the goal
    is, and the agent may go back there. Actions are north, east, south and west. At the junction,
    north and south end the episode, with a reward of 4 in the goal's arm and -0.1 in the other. A
    step into a wall costs 0.1; all other steps give 0.

    The best return is 4, and guessing gives 1.95. Unlike Bakker's, an episode is truncated after
    20 x length steps.

    Args:
        length: Steps from the start to the junction, at least 1.
    """

    observation_space = Box(0, 1, (3,))
    action_space = Discrete(4)

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.north, self.position, self.steps = bool(self.np_random.integers(2)), 0, 0
        return self.see(), {}

    def step(self, action: int):
        previous, self.steps = self.position, self.steps + 1
        if self.position == self.length and action in (NORTH, SOUTH):
            reward = 4.0 if (action == NORTH) == self.north else -0.1
            return self.see(), reward, True, False, {}
        forward = int(action == EAST) - int(action == WEST)
        self.position = min(max(self.position + forward, 0), self.length)
        reward = -0.1 if self.position == previous else 0.0
        return self.see(), reward, False, self.steps >= 20 * self.length, {}

    def see(self) -> np.ndarray:
        """Return the T-maze's observation at the agent's current position, (3,) float32."""
        if self.position == self.length:
            return np.array([0, 1, 0], np.float32)
        if self.position:
            return np.array([1, 0, 1], np.float32)
        return np.array([0, 1, 1] if self.north else [1, 1, 0], np.float32)


NORTH, EAST, SOUTH, WEST = range(4)


def show_only(env: gymnasium.Env, indices: list[int]) -> gymnasium.Env:
    """Wrap an environment so that it shows only some elements of its observation vector."""
    whole = env.observation_space
    assert isinstance(whole, Box)
    visible = Box(whole.low[indices], whole.high[indices], dtype=np.float32)
    return TransformObservation(env, lambda observation: observation[indices], visible)


def memory(length: int = 10) -> gymnasium.Env:
    """Create the environment ``Memory``: remember a cue until the end of the episode."""
    return Memory(length)


def t_maze(length: int = 10) -> gymnasium.Env:
    """Create the environment ``TMaze``: remember a cue through a corridor."""
    return TMaze(length)


def cartpole_without_velocity(render_mode: str | None = None) -> gymnasium.Env:
    """Create Gymnasium's CartPole-v1 that shows only position (metres) and angle (radians)."""
    return show_only(
        gymnasium.make("CartPole-v1", render_mode=render_mode, disable_env_checker=True), [0, 2]
    )


def pendulum_without_velocity(render_mode: str | None = None) -> gymnasium.Env:
    """Create Gymnasium's Pendulum-v1 that shows only the cosine and sine of the angle."""
    return show_only(
        gymnasium.make("Pendulum-v1", render_mode=render_mode, disable_env_checker=True), [0, 1]
    )
