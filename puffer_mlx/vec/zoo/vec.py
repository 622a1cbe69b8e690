"""PettingZoo's parallel environments as a ``VecEnv``: A agents each, one policy for all.

Environments step one after another, or in several processes. Environment i is reset with
``seed + i``.

**Last observations** have rows of their own always (``finals``). When the last agent of an
environment is done, the next step begins its next episode.

**Agents that are away** because they died before the others have rows of zeros, terminal 1,
``TERMINATED`` in ``finals`` and reward 0, until their environment begins anew: so nothing is
learned from these rows, and no value flows through them. They are no part of an episode.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from puffer_mlx.vec.gym.infos import MASK
from puffer_mlx.vec.instances import Buffers
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.plan import plan, step_time
from puffer_mlx.vec.python_faults import RAISED, failed
from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.zoo.agents import Spaces
from puffer_mlx.vec.zoo.make import ZooRecipe

__all__ = ["ZooVec"]


class ZooVec(PythonVec):
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
        super().__init__(name, total_agents, num_buffers, num_threads, seed, finals=True)
        recipe = ZooRecipe(name, make, dict(env or {}), render)
        probe = _Probe(recipe, seed, rescale_actions)
        chosen = plan(probe, recipe, total_agents, num_buffers, backend, num_threads)
        self._seeds = range(seed, seed + total_agents // probe.agents)
        shapes = Buffers.row_shapes(self._n, probe.layout.spec)
        self._build(chosen, probe.layout, shapes, probe.agents, timeout)


class _Probe:
    """One environment, to see what it is like; sets ``layout`` of the recipe.

    Attributes:
        agents: that it has.
        environments: 1.
        layout: of their rows.
    """

    environments = 1

    def __init__(self, recipe: ZooRecipe, seed: int, rescale: bool) -> None:
        self._recipe, self._seed = recipe, seed
        with closing(recipe.one(0, seed)) as env:
            spaces = Spaces(recipe.name, env)
            try:
                _, infos = env.reset(seed=seed)
            except RAISED as error:
                raise failed("failed in reset", error, 0).report(recipe.name, 0, seed) from error
        masked = spaces.masked or any(MASK in info for info in infos.values())
        self.agents, of = len(spaces.agents), (spaces.observation, spaces.action)
        self.layout = recipe.layout = Layout(recipe.name, *of, masked, rescale)

    def seconds(self) -> float:
        """That a step takes."""
        shapes = Buffers.row_shapes(self.agents, self.layout.spec)
        return step_time(self._recipe, self.layout, shapes, seed=self._seed)
