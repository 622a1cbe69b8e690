"""Environments as PufferLib 3.x's emulation makes them of Gymnasium's, without PufferLib.

They show an episode's last observation, set ``done`` and want to be reset. What an agent sees, a
Dict, is packed into bytes. ``infos`` is the dict of the one agent's episode.
"""

from types import SimpleNamespace

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from pairs import arrays

SPACE = Dict(
    {
        "count": Box(0, 100, (2,), np.float32),
        "pair": Tuple((Discrete(3), Box(0, 255, (3,), np.uint8))),
    }
)
PACKED = np.dtype(
    [("count", np.float32, (2,)), ("pair", [("f0", np.int32), ("f1", np.uint8, (3,))])], align=True
)


class Counting:
    """PufferLib environment whose episode k (from 1) has k steps and pays k in each.

    Its observations are k and the step.
    """

    def __init__(self, buf: dict | None = None, seed: int = 0) -> None:
        self.env = SimpleNamespace(observation_space=SPACE)
        self.is_obs_emulated, self.obs_dtype = True, PACKED
        self.single_observation_space = Box(0, 255, (PACKED.itemsize,), np.uint8)
        self.single_action_space = Discrete(2)
        self.num_agents = 1
        rows = arrays(1, PACKED.itemsize, buf, np.uint8)
        self.observations, self.rewards, self.terminals, self.truncations, self.masks = rows
        self._struct = self.observations.view(PACKED)
        self._episode = 0
        self.done = True

    def reset(self, seed: int | None = None) -> tuple:
        if seed is not None:
            self._episode = 0
        self._episode += 1
        self._step = 0
        self.done = False
        self.rewards[0] = 0
        self.terminals[0] = self.truncations[0] = False
        self._show()
        return self.observations, {}

    def step(self, actions: np.ndarray) -> tuple:
        assert not self.done
        self._step += 1
        self._show()
        self.rewards[0] = self._episode
        self.truncations[0] = self.done = self._step == self._episode
        info = {"score": 10 * self._episode} if self.done else {}
        return self.observations, self.rewards[0], False, self.done, info

    def _show(self) -> None:
        self._struct["count"] = self._episode, self._step
        self._struct["pair"]["f0"] = self._episode % 3
        self._struct["pair"]["f1"] = 7, 8, 9


class Duel:
    """PufferLib environment of two agents: ``b`` leaves after 2 of the 4 steps of an episode.

    ``at_once``: it is gone with its second step already, so that no row shows its end.
    """

    possible_agents = ("a", "b")

    def __init__(self, at_once: bool = False, buf: dict | None = None, seed: int = 0) -> None:
        self._last = 1 if at_once else 2
        self.single_observation_space = Box(0, 9, (1,), np.float32)
        self.single_action_space = Discrete(2)
        self.num_agents = 2
        rows = arrays(2, 1, buf)
        self.observations, self.rewards, self.terminals, self.truncations, self.masks = rows
        self.done = True

    def reset(self, seed: int | None = None) -> tuple:
        self._step, self.done = 0, False
        self.observations[:] = self._step
        self.rewards[:] = 0
        self.terminals[:] = self.truncations[:] = False
        self.masks[:] = True
        return {}, {}

    def step(self, actions: np.ndarray) -> tuple:
        self._step += 1
        self.done = self._step == 4
        here = np.array([True, self._step <= self._last])
        self.observations[:, 0] = self._step * here
        self.rewards[:] = (1, 10) * here
        self.masks[:] = here
        self.terminals[:] = self.done, self._step >= 2
        infos = {"a": {"x": 1}} if self.done else {"b": {"x": 5}} if self._step == 2 else {}
        return {}, {}, {}, {}, infos
