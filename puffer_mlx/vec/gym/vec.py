"""Gymnasium's environments as a ``VecEnv``: by id or made by a function, one agent each.

| form | steps | an episode's last observation |
| --- | --- | --- |
| vector | all at once, in the environment's own way | as it has it; mostly a row of its own |
| sync | one after the other, in this process | a row of its own if ``finals`` |
| async | each in a process of its own | a row of its own if ``finals`` |

``sync`` and ``async`` give the same rows, bit for bit: environment i is seeded with ``seed + i``.
A vectorised form has one generator for each group, seeded with ``seed`` plus the number of the
group's first environment: other rows, which depend on ``num_buffers`` too.

``auto`` stands for ``vector`` if the environment has a vectorised form of its own; else for
``sync`` or ``async``, whichever a few steps of one environment promise to be faster. Both give the
same rows, so the measurement can't change a result.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from puffer_mlx.config.schema import Wrap
from puffer_mlx.vec.gym.agents import HINT, NO_MASK
from puffer_mlx.vec.gym.make import GymRecipe
from puffer_mlx.vec.python_faults import Fault
from puffer_mlx.vec.python_vec import PythonVec


class GymVec(PythonVec):
    """N environments of Gymnasium in Q groups; implements ``ScoredVec``.

    They are made, and reset with their seeds, here.

    Args:
        make: a Gymnasium id, or what returns a ``gymnasium.Env`` or, given ``num_envs``, a
            ``gymnasium.vector.VectorEnv``.
        total_agents: N, a multiple of Q.
        finals: whether last observations are wanted; the attribute says whether they come.
        wrap: Gymnasium's wrappers around each environment.
        settings: the others of ``PythonVec``.

    Raises:
        UserError: there is no such environment, it can't be made or fails in its first reset, or it
            has a space that rows can't hold.
    """

    recipe = GymRecipe

    def __init__(
        self,
        make: str | Callable[..., Any],
        *,
        total_agents: int,
        finals: bool = False,
        wrap: Wrap | None = None,
        **settings: Any,
    ) -> None:
        more = {"finals": finals, "wrap": wrap or Wrap(), "total": total_agents}
        super().__init__(make, total_agents=total_agents, **more, **settings)
        with self._closing_on_failure():
            self._reset_all(self._seed)
            if self._are_masked():
                self._settle(self._recipe.layout_of(*self.layout.spaces, masked=True))
        self._fresh = True  # they are reset

    def _are_masked(self) -> bool:
        """Whether environments say which actions are legal: all of them, or none of group 0."""
        tells = np.concatenate([env.buffers.tells for env in self._envs])
        if not tells[: self._n].any():
            return False
        for index in np.flatnonzero(~tells)[:1].tolist():
            raise Fault(NO_MASK, "", index, HINT).report(self._name, 0, self._seed)
        return True

    def _reset_environments(self) -> None:
        """The first time they are as their seeds have them; then they go on drawing."""
        if not self._fresh:
            self._reset_all(None)
        self._fresh = False
