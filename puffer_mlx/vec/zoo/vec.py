"""PettingZoo's parallel environments as a ``VecEnv``: A agents each, one policy for all.

Environments step one after another, or in several processes: ``vec/puffer`` does that. Environment
i is reset with ``seed + i``.

**Last observations** have rows of their own always (``finals``). When the last agent of an
environment is done, the next step begins its next episode.

**Agents that are away** because they died before the others have rows of zeros, terminal 1,
``TERMINATED`` in ``finals`` and reward 0, until their environment begins anew: so nothing is
learned from these rows, and no value flows through them. They are no part of an episode.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from puffer_mlx.vec.base import TERMINATED, Rows
from puffer_mlx.vec.gym.episode_ends import EpisodeEnds
from puffer_mlx.vec.gym.infos import MASK
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.puffer.backends import plan
from puffer_mlx.vec.puffer.buffers import Buffers
from puffer_mlx.vec.puffer.in_workers import InWorkers
from puffer_mlx.vec.puffer.workers import Here, Workers
from puffer_mlx.vec.python_faults import RAISED, Fault, told
from puffer_mlx.vec.rows import check_picture
from puffer_mlx.vec.step_speed import step_seconds
from puffer_mlx.vec.zoo.agents import Spaces
from puffer_mlx.vec.zoo.make import ZooRecipe

__all__ = ["ZooVec"]


class ZooVec(InWorkers):
    """N agents of parallel environments in Q groups; implements ``ScoredVec``.

    Args:
        make: what makes an environment (``zoo.make``).
        name: of the environment, for messages.
        total_agents: N, a multiple of Q and of the agents of one environment.
        num_buffers: Q.
        env: further arguments of ``make``.
        seed: of environment 0.
        backend: ``sync``, ``async``, or ``auto``, what a few steps promise to be faster.
        timeout: seconds after which an environment's process is taken to hang.
        num_threads: the most processes, and threads that may act for the policy in ``collect``.
        render: make environments that can ``render``.
        rescale_actions: a continuous action's -1 to 1 is the low to high of its bounds.

    Attributes:
        layout: how observations and actions lie in rows; ``layout.restore`` gives Dicts and Tuples
            back.

    Raises:
        UserError: the environment can't be made, its agents differ, or don't add up to N.
    """

    def __init__(
        self,
        make: Any,
        *,
        name: str,
        total_agents: int,
        num_buffers: int = 1,
        env: Mapping[str, Any] | None = None,
        seed: int = 0,
        backend: str = "auto",
        timeout: float = 60.0,
        num_threads: int = 1,
        render: bool = False,
        rescale_actions: bool = False,
    ) -> None:
        super().__init__(name, total_agents, num_buffers, num_threads, seed)
        self.finals = True
        recipe = ZooRecipe(name, make, dict(env or {}), render, rescale_actions)
        probe = _Probe(recipe, seed)
        chosen = plan(probe, recipe, total_agents, num_buffers, backend, num_threads)
        self._ends = [EpisodeEnds(self._n, finals=True) for _ in range(num_buffers)]
        self._seeds = range(seed, seed + total_agents // probe.agents)
        self._build(chosen, probe.layout, probe.buffers(self._n), probe.agents, timeout)

    def _begin_episodes(self, group: int, out: Rows) -> None:
        ends = self._ends[group]
        ends.restart()
        ends.over = ~self._envs[group].buffers.masks  # who isn't there yet
        ends.any_over = bool(ends.over.any())
        if out.finals is not None:
            out.finals[:] = TERMINATED * ends.over
        self._write(group, out)

    def _begin(self, group: int, env: Here | Workers, actions: np.ndarray, out: Rows) -> Rows:
        np.copyto(env.buffers.actions, actions)
        with self._closing_on_failure():
            env.begin()
        return out

    def _end(self, group: int, env: Here | Workers, step: Rows) -> None:
        with self._closing_on_failure():
            facts, buffers = env.finish(), env.buffers
            step.rewards[:] = buffers.paid
            over, idle = self._ends[group].write(buffers.terminals, buffers.truncations, step)
            self._write(group, step)
        told = {fact.agent: fact.numbers for fact in facts}
        ended = over if idle is None else over & ~idle  # idle: began anew, or away
        self._episodes.add(
            buffers.paid, ended, first=group * self._n, resets=idle, infos=told or None
        )

    def _write(self, group: int, out: Rows) -> None:
        """What the buffers hold, into rows, and the check of it."""
        buffers = self._envs[group].buffers
        np.copyto(out.observations, buffers.observations)
        if out.masks is not None and buffers.legal is not None:
            np.copyto(out.masks, buffers.legal)
        self._check_finite(group, out)

    def render(self) -> np.ndarray:
        """Environment 0's picture (h, w, 3) uint8.

        Raises:
            UserError: it can't be drawn.
        """
        with self._closing_on_failure():
            return check_picture(self._name, self._open(0).render())


class _Probe:
    """One environment, to see what it is like; sets ``masked`` of the recipe.

    Attributes:
        agents: that it has.
        environments: 1.
        layout: of their rows.
    """

    environments = 1

    def __init__(self, recipe: ZooRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        with closing(recipe.one(0, seed)) as env:
            spaces = Spaces(recipe.name, env)
            try:
                _, infos = env.reset(seed=seed)
            except RAISED as error:
                found = Fault("failed in reset", told(error), 0)
                raise found.report(recipe.name, 0, seed) from error
        recipe.masked = spaces.masked or any(MASK in info for info in infos.values())
        self.agents = len(spaces.agents)
        of = spaces.observation, spaces.action
        self.layout = Layout(recipe.name, *of, recipe.masked, recipe.rescale)

    def buffers(self, n: int) -> dict[str, Any]:
        """``Buffers.layout`` of n agents: rows, and what a policy chooses."""
        from gymnasium.spaces import Box

        spec = self.layout.spec
        seen = Box(0, 1, (spec.observation_size,), spec.observation_dtype.type)
        found = Buffers.layout(n, seen, Box(-1, 1, (spec.action.heads,), np.float32))
        return found | ({"legal": ((n, spec.mask_size), np.uint8)} if spec.mask_size else {})

    def seconds(self) -> float:
        """That a step takes, with its share of resets and with random legal actions."""
        layout = self.buffers(self.agents)
        here = Here(layout, recipe=self._recipe, count=1, num_envs=None, seed=self._seed, number=0)
        rng, buffers = np.random.default_rng(0), here.buffers
        with closing(here):
            here.reset(self._seed)

            def step() -> None:
                buffers.actions[:] = self._some(rng, buffers.legal)
                here.begin()
                here.finish()

            return step_seconds(step)

    def _some(self, rng: np.random.Generator, legal: np.ndarray | None) -> np.ndarray:
        """Random actions of all agents."""
        action = self.layout.spec.action
        if action.continuous:
            return rng.standard_normal((self.agents, action.heads), np.float32)
        chances = rng.random((self.agents, action.logits)) * (1 if legal is None else legal)
        heads = np.split(chances, np.cumsum(action.sizes)[:-1], axis=1)
        return np.stack([head.argmax(axis=1) for head in heads], axis=1)
