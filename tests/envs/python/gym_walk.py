"""A walk along a line, in Gymnasium's way, whose every number is known: for tests of rows and logs.

It starts at ``seed % 3 - 1``, ends at ±size, and is out of time after ``limit`` steps. An agent
sees where it is, how many steps it took and in which episode it is, and is paid where it is.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv


class Walk(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        size: int = 3,
        limit: int = 7,
        masked: bool = False,
        nested: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.size, self.limit, self.masked, self.nested = size, limit, masked, nested
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(3, start=-1)
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        if nested:
            at = {"walk": self.observation_space, "parity": spaces.Discrete(2)}
            self.observation_space = spaces.Dict(at)
        self.start, self.episode = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if seed is not None:
            self.start, self.episode = seed % 3 - 1, 0
        self.position, self.steps = self.start, 0
        self.episode += 1
        return self._seen(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        assert action in self.action_space
        self.steps += 1
        self.position += int(action)
        over = abs(self.position) >= self.size
        info = self._info()
        if over or self.steps >= self.limit:
            info["final_position"] = self.position
        return self._seen(), float(self.position), over, self.steps >= self.limit, info

    def render(self) -> np.ndarray:
        picture = np.zeros((2, 2 * self.size + 1, 3), np.uint8)
        picture[:, self.position + self.size] = 255
        return picture

    def _seen(self) -> Any:
        seen = np.array([self.position, self.steps, self.episode], np.float64)
        return {"parity": self.steps % 2, "walk": seen} if self.nested else seen

    def _info(self) -> dict[str, Any]:
        legal = np.array([self.position > 0, True, True], np.int8)
        return {"action_mask": legal} if self.masked else {}


class Walks(VectorEnv):
    """Vector environment of walks (``Walk``), all seeded alike."""

    def __init__(self, num_envs: int, mode: str = "NextStep", **keywords: Any) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode}  # the value of one of AutoresetMode
        self.walks = [Walk(**keywords) for _ in range(num_envs)]
        self.single_observation_space = self.walks[0].observation_space
        self.single_action_space = self.walks[0].action_space
        self.over = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.over[:] = False
        return np.stack([walk.reset(seed=seed)[0] for walk in self.walks]), {}

    def step(self, actions: np.ndarray) -> tuple:
        same = self.metadata["autoreset_mode"] == "SameStep"
        infos: dict[str, Any] = {}
        rows = []
        for i, (walk, action) in enumerate(zip(self.walks, actions, strict=True)):
            seen, reward, ended, late, info = (
                (walk.reset()[0], 0.0, False, False, {}) if self.over[i] else walk.step(action)
            )
            self.over[i] = (ended or late) and not same
            if same and (ended or late):
                infos = self._add_info(infos, {"final_info": info}, i)
                seen, _ = walk.reset()
            elif not same:
                infos = self._add_info(infos, info, i)
            rows.append((seen, reward, ended, late))
        seen, rewards, ended, late = zip(*rows, strict=True)
        return np.stack(seen), np.array(rewards), np.array(ended), np.array(late), infos
