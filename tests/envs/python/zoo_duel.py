"""A game of two teams in PettingZoo's form, without PettingZoo: who chooses larger numbers wins."""

import numpy as np
from gymnasium.spaces import Box, Discrete


class Duel:
    """PettingZoo game in which two teams play ``length`` steps against each other.

    Each agent chooses 0, 1 or 2 in a step. At the end, agents of the team with the larger sum get a
    reward of 1, and the others -1. With ``leaves``, agent 1 ends after its first step, and its
    choice counts. Agents see the step and their number, times ``scale``.
    """

    metadata = {"name": "duel", "render_modes": ["rgb_array"]}

    def __init__(self, agents=2, length=3, leaves=False, scale=1.0, render_mode=None):
        self.possible_agents = [f"player_{i}" for i in range(int(agents))]
        self.length, self.leaves, self.scale = int(length), leaves, scale
        self.render_mode = render_mode
        self.agents: list[str] = []

    def observation_space(self, agent):
        return Box(-99, 99, (2,), np.float32)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.t, self.lead = 0, 0
        self.agents = list(self.possible_agents)
        return self.look(), {a: {} for a in self.agents}

    def look(self):
        number = self.possible_agents.index
        return {
            a: self.scale * np.array([self.t, number(a)], np.float32) for a in self.possible_agents
        }

    def step(self, actions):
        self.t += 1
        half = len(self.possible_agents) // 2
        own = {a: 1 if self.possible_agents.index(a) < half else -1 for a in actions}
        self.lead += sum(own[a] * int(actions[a]) for a in actions)
        over = self.t == self.length
        died = {a: over or (self.leaves and a == "player_1") for a in actions}
        paid = {a: float(own[a] * np.sign(self.lead) * over) for a in actions}
        seen = {a: row for a, row in self.look().items() if a in actions}
        self.agents = [a for a in self.agents if not died[a]]
        return seen, paid, died, dict.fromkeys(actions, False), {a: {} for a in actions}

    def render(self):
        return np.full((8, 8, 3), 20 * self.t, np.uint8)

    def close(self):
        pass


parallel_env = Duel
