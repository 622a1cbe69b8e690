"""Parallel environments in PettingZoo's form, without PettingZoo."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Relay:
    """PettingZoo environment in which each of three agents runs for ``lives[i]`` steps.

    The last one's end is a time limit.

    Agent i sees (step, i). Its reward is 10 i plus its action.
    """

    metadata = {"name": "relay", "render_modes": ["rgb_array"]}

    def __init__(self, lives="2 1 4", masks="", mixed=False, render_mode=None):
        self.lives = [int(life) for life in lives.split()]
        self.masks, self.mixed, self.render_mode = masks, mixed, render_mode
        self.possible_agents = [f"runner_{i}" for i in range(len(self.lives))]
        self.agents: list[str] = []
        self.seeds: list[int | None] = []
        self.took: list[dict] = []

    def observation_space(self, agent):
        seen = Box(-9, 99, (3 if self.mixed and agent == "runner_1" else 2,), np.float32)
        mask = Box(0, 1, (3,), np.int8)
        return Dict(observation=seen, action_mask=mask) if self.masks == "seen" else seen

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.t = 0
        self.agents = [*self.possible_agents]
        return self.look(self.agents), self.infos(self.agents)

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.took.append({a: int(action) for a, action in actions.items()})
        self.t += 1
        ran = list(actions)
        index = {a: self.possible_agents.index(a) for a in ran}
        over = {a: self.t >= self.lives[i] for a, i in index.items()}
        last = max(self.lives)
        limit = {a: over[a] and self.lives[i] == last for a, i in index.items()}
        rewards = {a: float(10 * i + actions.get(a, 0)) for a, i in index.items()}
        infos = self.infos(ran)
        for a in ran:
            infos[a]["goals"] = index[a] + 0.5
        self.agents = [a for a in ran if not over[a]]
        return self.look(ran), rewards, {a: over[a] and not limit[a] for a in ran}, limit, infos

    def look(self, agents):
        seen = {a: np.array([self.t, int(a[-1])], np.float32) for a in agents}
        if self.masks != "seen":
            return seen
        return {a: {"observation": seen[a], "action_mask": self.mask(a)} for a in agents}

    def infos(self, agents):
        return {a: {"action_mask": self.mask(a)} if self.masks == "infos" else {} for a in agents}

    def mask(self, agent):
        return (np.arange(3) != int(agent[-1])).astype(np.int8)

    def render(self):
        return np.full((4, 5, 3), self.t, np.uint8)

    def close(self):
        pass


def relay(**keywords):
    """Make a ``Relay``. A function's name doesn't show that it is a parallel environment."""
    return Relay(**keywords)
