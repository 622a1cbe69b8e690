"""PufferLib 3.x's Python environments as a ``VecEnv``, with or without PufferLib.

| form | instances |
| --- | --- |
| vector | one for each group, of as many environments as there are (``num_envs``) |
| sync | many, one after another in this process |
| async | many, in several processes; one in each that takes ``num_envs`` |

Instance i is made and reset with ``seed + i``. What they do is stepped here rather than by
``pufferlib.vector``: that one needs subclasses of its own PufferEnv, waits for a process that died
without end, and ends episodes of emulated environments a step later than those of native ones.

**Agents that aren't there.** Environments tell by ``masks`` that an agent has left; its rows are
padding until it comes back. They are handed on as they are, as PufferLib's trainer does: the agent
acts, nobody listens, and its reward is what the environment writes (0, emulated). Their
``terminals`` are 1, if the environment ends them, so that no value flows through. Such steps are no
part of an episode.

**Time limits.** ``finals`` is False: native environments never show an episode's last observation,
so an episode that a limit ended counts as over.
"""

from typing import Any

import numpy as np

from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.instances import Fact
from puffer_mlx.vec.puffer.make import PufferRecipe
from puffer_mlx.vec.python_vec import PythonVec


class PufferVec(PythonVec):
    """N agents of PufferLib 3.x's environments in Q groups; implements ``ScoredVec``.

    Args:
        make: an environment's class, or a function that returns one (``is_puffer_env``).
        total_agents: N, a multiple of Q and of the agents of one instance.
        settings: the others of ``PythonVec``. With ``num_envs`` in ``env`` every instance has so
            many; without, an environment that takes it gets as many as needed.

    Raises:
        UserError: the environment can't be made, or its agents don't add up to N.
    """

    recipe = PufferRecipe
    _recipe: PufferRecipe

    def __init__(self, make: Any, *, total_agents: int, **settings: Any) -> None:
        super().__init__(make, total_agents=total_agents, **settings)
        self._running = np.zeros(total_agents, bool)  # whose episode has begun

    def _begin_episodes(self, group: int, out: Rows) -> None:
        self._running[self._agents(group)] = False
        self._write(group, out)

    def _arrive(self, group: int, facts: list[Fact], out: Rows) -> None:
        """Agents that aren't there are counted only until they leave."""
        buffers, first = self._envs[group].buffers, group * self._n
        over = np.logical_or(buffers.terminals, buffers.truncations)
        out.rewards[:] = buffers.rewards
        out.terminals[:] = over
        self._write(group, out)
        infos = {fact.agent: fact.numbers for fact in facts if fact.agent >= 0}
        running = self._running[self._agents(group)]
        if buffers.present.all():
            np.logical_not(over, out=running)
            self._episodes.add(buffers.rewards, over, first=first, infos=infos)
        else:
            stepped = buffers.present | running
            ended = over & stepped
            np.greater(stepped, ended, out=running)
            paid = np.where(stepped, buffers.rewards, 0)
            self._episodes.add(paid, ended, first=first, resets=~stepped, infos=infos)
        for fact in facts:
            if fact.agent < 0:
                self._episodes.note(fact.numbers)

    def render(self) -> np.ndarray | bool:
        """What the first environment draws, (h, w, 3) uint8; True if that is no picture.

        Those that draw in windows of their own do so.
        """
        picture = self._drawn()
        if isinstance(picture, np.ndarray | list):
            array = np.asarray(picture)
            if array.ndim == 3 and array.dtype == np.uint8:
                return array
        return True

    def _unpacked(self, group: int) -> Any:
        return self._recipe.unpack(self._envs[group].buffers.observations)

    def _exact(self, group: int) -> np.ndarray:
        rows = np.zeros((self._n, self.spec.observation_size), self.layout.exact_dtype)
        self.layout.write(self._unpacked(group), rows)
        return rows

    def _write(self, group: int, out: Rows) -> None:
        """Observations of the buffers into rows, and the check of what is in these."""
        if self.layout.exact_dtype == out.observations.dtype:
            self.layout.write(self._unpacked(group), out.observations)
        else:
            np.copyto(out.observations, self._exact(group))
        self._check_finite(group, out)
