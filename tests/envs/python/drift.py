"""The environment ``tests/envs/drift`` in Gymnasium's way: two continuous actions, odd scales."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Drift(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, length: int = 6) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.tick = self.np_random.uniform(-1, 1, 2), 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.tick += 1
        self.at = np.clip(self.at + action, -3, 3)
        reward = -abs(self.at[0]) - 2 * abs(self.at[1])
        return self._seen(), float(reward), self.tick == self.length, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([1000 + self.at[0], self.at[1] / 100, self.tick], np.float32)
