"""A small environment as PufferLib 3.x has them, without PufferLib: two agents, two choices each.

Both see which of ``signs`` signs is up, and which of the two they are (0 or 1). The first choice is
right if it is the number of the sign plus the agent's own, the second if it is the agent's own. An
episode has ``length`` steps; for agent 0 it is over then, for agent 1 it is cut off. As PufferLib's
own do, the environment begins the next one within the step, and writes all it has to say into the
arrays it was given.
"""

import os
import sys

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete


def arrays(n: int, size: int, buf: dict | None, dtype: type = np.float32) -> list[np.ndarray]:
    """Return the arrays that PufferLib passed as ``buf`` for n agents, or new ones."""
    rows = {"observations": np.zeros((n, size), dtype), "rewards": np.zeros(n, np.float32)}
    rows |= {"terminals": np.zeros(n, bool), "truncations": np.zeros(n, bool)}
    rows |= {"masks": np.ones(n, bool)}
    return [(buf or rows)[name] for name in rows]


class Pairs:
    """``num_envs`` PufferLib environments of 2 agents that choose what they see. D = signs + 2.

    ``leaves``: agent 1 is gone in the second half of an episode. ``fault``: what goes wrong.
    """

    def __init__(
        self,
        num_envs: int = 1,
        signs: int = 3,
        length: int = 8,
        leaves: bool = False,
        fault: str = "",
        report: int = 16,
        buf: dict | None = None,
        seed: int = 0,
    ) -> None:
        self.num_agents = n = 2 * num_envs
        self.single_observation_space = Box(0.0, 1.0, (signs + 2,), np.float32)
        self.single_action_space = MultiDiscrete([signs, 2])
        self._signs, self._length, self._leaves = signs, length, leaves
        self._fault, self._report = fault, report
        rows = arrays(n, signs + 2, None if fault == "own arrays" else buf)
        self.observations, self.rewards, self.terminals, self.truncations, self.masks = rows
        self._agent = np.tile([0, 1], num_envs)
        self.seed = seed
        self.closed = False

    def reset(self, seed: int = 0) -> tuple[np.ndarray, list]:
        if type(seed) is not int:  # as PufferLib's own in C
            raise TypeError("seed must be an integer")
        if self._fault == "reset":
            raise RuntimeError("it can't be reset")
        self._rng = np.random.default_rng(seed)
        self._steps = self._tick = 0
        self._scores: list[float] = []
        self._score = np.zeros(self.num_agents)
        self.masks[:] = True
        self._show()
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple:
        assert actions.shape == (self.num_agents, 2) and actions.dtype == np.int32
        self._steps += 1
        self._tick += 1
        right = actions[:, 0] == (self._shown + self._agent) % self._signs
        self.rewards[:] = 0.5 * right + 0.5 * (actions[:, 1] == self._agent)
        if self._leaves:
            gone = (self._agent == 1) & (self._tick > self._length // 2)
            self.rewards[gone] = 0
            self.masks[:] = ~gone
        self._break()
        over = self._tick == self._length
        self.terminals[:] = over & (self._agent == 0)
        self.truncations[:] = over & (self._agent == 1)
        if self._leaves:
            self.terminals |= (self._agent == 1) & (self._tick >= self._length // 2)
        self._score += self.rewards
        if over:
            self._scores += (self._score / self._length).tolist()
            self._score[:] = 0
            self._tick = 0
        infos = []
        if self._steps % self._report == 0 and self._scores:
            infos = [{"score": np.mean(self._scores), "n": len(self._scores), "word": "pairs"}]
            self._scores = []
        self._show()
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def render(self) -> np.ndarray:
        return np.full((2, 3, 3), self._tick, np.uint8)

    def close(self) -> None:
        self.closed = True

    def _show(self) -> None:
        self._shown = np.repeat(self._rng.integers(0, self._signs, (self.num_agents + 1) // 2), 2)
        everyone = np.arange(self.num_agents)
        self.observations[:] = 0
        self.observations[everyone, self._shown] = 1
        self.observations[everyone, self._signs + self._agent] = 1

    def _break(self) -> None:
        if self._steps < 3:
            return
        if self._fault == "exit":
            sys.exit(0)
        if self._fault == "nan":
            self.rewards[-1] = np.nan
        if self._fault == "die":
            os._exit(3)


def single(signs: int = 3, length: int = 8, fault: str = "", buf=None, seed: int = 0) -> Pairs:
    """Make one ``Pairs`` environment, as PufferLib's factories do."""
    return Pairs(1, signs, length, fault=fault, buf=buf, seed=seed)
