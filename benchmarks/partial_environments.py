"""Tasks with partial observations, which need memory of earlier observations.

Each function makes an environment of Gymnasium, for any trainer:

    python scripts/train.py benchmarks/partial_environments.py:t_maze --env.length 20

| task | must be remembered | at most | without memory |
| --- | --- | --- | --- |
| ``memory`` | a cue, until it is asked for | 1 | 0.5 |
| ``t_maze`` | a cue, through a corridor | 4 | 1.95 |
| ``cartpole_without_velocity`` | where cart and pole were just now | 500 | less |
| ``pendulum_without_velocity`` | where the pendulum was just now | about -150 | less |
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformObservation


class Memory(gymnasium.Env):
    """``envs/memory`` in Python: the first observation is the cue, -1 or 1, all others are 0.

    The action that ends the episode must name the cue, 0 for -1 and 1 for 1; then the reward is 1.

    Args:
        length: actions of an episode.
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
        over = self.tick >= self.length
        reward = float(over and action == (self.cue > 0))
        return np.zeros(1, np.float32), reward, over, False, {}


class TMaze(gymnasium.Env):
    """The T-maze of Bakker (2002), "Reinforcement Learning with Long Short-Term Memory", NIPS 14.

    A corridor leads east to a junction, whose northern or southern arm has the goal. Three numbers
    are seen, walls in Bakker's picture of it: 0 1 1 (goal in the north) or 1 1 0 (in the south) at
    the start, 1 0 1 in the corridor, 0 1 0 at the junction. So the start is the only place that
    tells the arm, and the agent may go back there. Actions are north, east, south and west. At the
    junction north and south end the episode, with a reward of 4 in the goal's arm and of -0.1 in
    the other; a step that a wall stops costs 0.1; all others give 0.

    The best return is 4, and 1.95 if the arm is guessed. Unlike Bakker's, an episode is truncated
    after 20 x length steps.

    Args:
        length: steps from the start to the junction; at least 1.
    """

    observation_space = Box(0, 1, (3,))
    action_space = Discrete(4)

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.north, self.place, self.steps = bool(self.np_random.integers(2)), 0, 0
        return self.see(), {}

    def step(self, action: int):
        before, self.steps = self.place, self.steps + 1
        if self.place == self.length and action in (NORTH, SOUTH):
            reward = 4.0 if (action == NORTH) == self.north else -0.1
            return self.see(), reward, True, False, {}
        forward = int(action == EAST) - int(action == WEST)
        self.place = min(max(self.place + forward, 0), self.length)
        reward = -0.1 if self.place == before else 0.0
        return self.see(), reward, False, self.steps >= 20 * self.length, {}

    def see(self) -> np.ndarray:
        """(3,) float32."""
        if self.place == self.length:
            return np.array([0, 1, 0], np.float32)
        if self.place:
            return np.array([1, 0, 1], np.float32)
        return np.array([0, 1, 1] if self.north else [1, 1, 0], np.float32)


NORTH, EAST, SOUTH, WEST = range(4)


def only(env: gymnasium.Env, kept: list[int]) -> gymnasium.Env:
    """An environment that shows only some of its numbers (a Box of one dimension)."""
    whole = env.observation_space
    assert isinstance(whole, Box)
    seen = Box(whole.low[kept], whole.high[kept], dtype=np.float32)
    return TransformObservation(env, lambda observation: observation[kept], seen)


def memory(length: int = 10) -> gymnasium.Env:
    """``Memory``."""
    return Memory(length)


def t_maze(length: int = 10) -> gymnasium.Env:
    """``TMaze``."""
    return TMaze(length)


def cartpole_without_velocity(render_mode: str | None = None) -> gymnasium.Env:
    """Gymnasium's CartPole-v1; place (metres) and angle (radians) are seen."""
    return only(
        gymnasium.make("CartPole-v1", render_mode=render_mode, disable_env_checker=True), [0, 2]
    )


def pendulum_without_velocity(render_mode: str | None = None) -> gymnasium.Env:
    """Gymnasium's Pendulum-v1; cosine and sine of its angle are seen."""
    return only(
        gymnasium.make("Pendulum-v1", render_mode=render_mode, disable_env_checker=True), [0, 1]
    )
