"""A parallel environment of PettingZoo whose agents write rows: what ``puffer.instances`` steps.

Rows are in the order of ``possible_agents``.

| an agent | its row |
| --- | --- |
| acts | what it sees, its reward |
| has just died, or time is up | the last thing it sees, its last reward; terminal or truncation 1 |
| is away: died earlier, or not there yet | zeros, terminal 1; every action is legal |

When no agent is left, the next step begins a new episode, and takes no actions.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.infos import MASK, Masks
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.puffer.buffers import Buffers
from puffer_mlx.vec.spaces import kind_of

__all__ = ["DRAWS", "Agents", "Spaces", "looks_parallel", "takes_turns"]

SEEN = "observation"  # beside the mask, in observations of PettingZoo that have one
DRAWS = 'take a render_mode, and return pictures from render() if it is "rgb_array"'


def looks_parallel(made: Any) -> bool:
    """Whether an object is a parallel environment."""
    has = ("possible_agents", "observation_space", "action_space", "reset", "step")
    return all(hasattr(made, name) for name in has) and not takes_turns(made)


def takes_turns(made: Any) -> bool:
    """Whether an object is an environment of PettingZoo's other kind, AEC."""
    names = "agent_selection", "agent_iter"  # wrappers have the former after a reset only
    return hasattr(made, "possible_agents") and any(hasattr(made, name) for name in names)


class Spaces:
    """What all agents of an environment see and do.

    Args:
        name: for messages.
        env: the parallel environment.

    Attributes:
        agents: all there may be.
        observation: of one agent, without its mask.
        action: of one agent.
        masked: whether observations hold masks.

    Raises:
        UserError: agents see or do different things.
    """

    def __init__(self, name: str, env: Any) -> None:
        self.agents = list(env.possible_agents)
        if not self.agents:
            raise UserError(f"{name}: its possible_agents are none", "name all there may be")
        first = self.agents[0]
        for what, space in (("sees", env.observation_space), ("does", env.action_space)):
            for other in self.agents[1:]:
                if space(other) != space(first):
                    raise UserError(
                        f"{name}: its agents differ: {first} {what} {space(first)},"
                        f" {other} {space(other)}; one policy is trained for all of them",
                        "make them alike: supersuit.pad_observations_v0 and"
                        " supersuit.pad_action_space_v0 (pip install supersuit)",
                    )
        self.observation, self.action = env.observation_space(first), env.action_space(first)
        self.masked = kind_of(self.observation) == "Dict" and {SEEN, MASK} <= set(
            self.observation.spaces
        )
        if self.masked:
            self.observation = self.observation[SEEN]


class Agents:
    """One environment and its A agents.

    Args:
        name: for messages.
        env: the parallel environment.
        buffers: of its agents: rows of ``layout`` as observations, and as actions what a policy
            chose, (A, heads) float32.
        rescale: as of ``Layout``.
        masked: the environment tells which actions are legal.

    Attributes:
        num_agents: A.
        possible_agents: their names.
    """

    def __init__(self, name: str, env: Any, buffers: Buffers, rescale: bool, masked: bool) -> None:
        from gymnasium.vector.utils import batch_space

        self._name, self._spaces = name, (spaces := Spaces(name, env))
        self._env, self._buffers = env, buffers
        self.possible_agents, self.num_agents = spaces.agents, len(spaces.agents)
        self._layout = Layout(name, spaces.observation, spaces.action, masked, rescale)
        self._actions = batch_space(spaces.action, self.num_agents)
        self._masks = Masks(name, spaces.action, 0, "agent") if masked else None
        self._done: set[Any] = set()  # in this episode
        self._over = False
        self.observations, self.rewards = buffers.observations, buffers.rewards
        self.terminals, self.truncations = buffers.terminals, buffers.truncations
        self.masks = buffers.masks

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode."""
        seen, infos = self._env.reset() if seed is None else self._env.reset(seed=seed)
        self.rewards[:] = 0
        self.terminals[:] = self.truncations[:] = False
        self._done = set()
        self._write(seen, infos)
        self._over = False

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        """One step of those that are there; the last of what is returned is their infos."""
        if self._over:
            self.reset()
            return (None,) * 4 + ({},)
        from gymnasium.vector.utils import iterate

        chosen = iterate(self._actions, self._layout.actions(actions))
        acting = set(self._env.agents) - self._done
        seen, rewards, terminations, truncations, infos = self._env.step(
            {
                a: choice
                for a, choice in zip(self.possible_agents, chosen, strict=True)
                if a in acting
            }
        )
        seen = {agent: each for agent, each in seen.items() if agent not in self._done}
        for i, agent in enumerate(self.possible_agents):
            counts = agent in acting or agent in seen
            self.rewards[i] = rewards.get(agent, 0) if counts else 0
            self.terminals[i] = terminated = bool(terminations.get(agent, False))
            self.truncations[i] = bool(truncations.get(agent, False))
            if terminated or self.truncations[i] or (agent in acting and agent not in seen):
                self._done.add(agent)
        self._write(seen, infos)
        self._over = not set(self._env.agents) - self._done
        told = {a: {k: v for k, v in info.items() if k != MASK} for a, info in infos.items()}
        return (None,) * 4 + (told,)

    def render(self) -> Any:
        """What the environment draws.

        Raises:
            UserError: it draws nothing: PettingZoo asks for no ``render``.
        """
        if hasattr(self._env, "render"):
            with suppress(NotImplementedError):
                return self._env.render()
        raise UserError(f"{self._name}: it can't be drawn: it has no render()", DRAWS)

    def close(self) -> None:
        """Close it."""
        self._env.close()

    def _write(self, seen: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Rows of what agents see and may do; those of the others."""
        from gymnasium.vector.utils import concatenate, create_empty_array

        there = np.array([agent in seen for agent in self.possible_agents])
        self.masks[:] = there
        self.terminals[~there] = True
        self.truncations[~there] = False
        if seen:
            some = next(iter(seen.values()))
            each = [self._of(seen.get(agent, some)) for agent in self.possible_agents]
            space = self._spaces.observation
            batch = create_empty_array(space, self.num_agents)
            self._layout.write(concatenate(space, each, batch), self.observations)
        self.observations[~there] = 0
        if self._masks is not None and self._buffers.legal is not None:
            self._masks.write(
                self._merged(seen, infos),
                self.terminals | self.truncations,  # nobody acts there
                self._buffers.legal,
            )

    def _of(self, seen: Any) -> Any:
        return seen[SEEN] if self._spaces.masked else seen

    def _merged(self, seen: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[str, Any]:
        """Masks as a vector environment's info has them."""
        told = seen if self._spaces.masked else infos
        given = [told.get(agent, {}).get(MASK) for agent in self.possible_agents]
        masks = np.empty(len(given), object)
        masks[:] = given
        return {MASK: masks, f"_{MASK}": np.array([mask is not None for mask in given])}
