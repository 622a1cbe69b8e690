"""Gymnasium's environments as a ``VecEnv``: by id or made by a function, one agent each.

| form | steps | an episode's last observation |
| --- | --- | --- |
| vector | all at once, in the environment's own way | as it has it; mostly a row of its own |
| sync | one after the other, in this process | a row of its own if ``finals`` |
| async | each in a process of its own | a row of its own if ``finals`` |

``sync`` and ``async`` give the same rows, bit for bit: environment i is seeded with ``seed + i``.
A vectorised form has one generator for each group, seeded with ``seed`` plus the number of the
group's first environment: other rows, which depend on ``num_buffers`` too.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.backends import choose, tells_finals
from puffer_mlx.vec.gym.infos import HINT, NO_MASK
from puffer_mlx.vec.gym.make import Recipe
from puffer_mlx.vec.instances import Buffers
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.plan import Plan
from puffer_mlx.vec.python_faults import Fault
from puffer_mlx.vec.python_vec import PythonVec

__all__ = ["GymVec"]

_SEED_LIMIT = 2**32


class GymVec(PythonVec):
    """N environments of Gymnasium in Q groups; implements ``ScoredVec``.

    They are made, and reset with their seeds, here.

    Args:
        make: a Gymnasium id, or what returns a ``gymnasium.Env`` or, given ``num_envs``, a
            ``gymnasium.vector.VectorEnv``.
        name: of the environment, for messages.
        total_agents: N, a multiple of Q.
        num_buffers: Q.
        env: further arguments of ``make`` or of ``gymnasium.make``.
        seed: environment i is seeded with ``seed + i`` at the first reset.
        backend: ``vector``, ``sync``, ``async``; ``auto`` is ``vector`` where that exists, else
            what seems to be the faster of the others.
        finals: whether last observations are wanted; the attribute says whether they come.
        timeout: seconds after which an environment's process is taken to hang.
        num_threads: threads that may act for the policy in ``collect``.
        render: be able to ``render``.
        rescale_actions: a continuous action's -1 to 1 is the low to high of its bounds.
        wrap: Gymnasium's wrappers around each environment.

    Raises:
        UserError: there is no such environment, it can't be made or fails in its first reset, or it
            has a space that rows can't hold.
    """

    def __init__(
        self,
        make: str | Callable[..., Any],
        *,
        name: str,
        total_agents: int,
        num_buffers: int = 1,
        env: Mapping[str, Any] | None = None,
        seed: int = 0,
        backend: str = "auto",
        finals: bool = False,
        timeout: float = 60.0,
        num_threads: int = 1,
        render: bool = False,
        rescale_actions: bool = False,
        wrap: Wrap | None = None,
    ) -> None:
        if total_agents % num_buffers:
            raise UserError(
                f"{name}: vec.total_agents {total_agents} is not a multiple of vec.num_buffers "
                f"{num_buffers}",
                f"{num_buffers * max(1, total_agents // num_buffers)} is",
            )
        recipe = Recipe(name, make, dict(env or {}), render, wrap or Wrap(), total_agents, finals)
        form, why = choose(recipe, total_agents, backend)
        n = total_agents // num_buffers
        try:
            spaces = recipe.look_at(n if form == "vector" else 0)
            recipe.finals = tells_finals(name, recipe.ready) if form == "vector" else finals
            recipe.layout = Layout(name, *spaces, rescale=rescale_actions)
            if form == "async":
                recipe.close()
            super().__init__(
                name, total_agents, num_buffers, num_threads, seed % _SEED_LIMIT, recipe.finals
            )
            self.unread = recipe.unread  # Gymnasium refuses what it doesn't know
            self._seeds = range(self._seed, self._seed + total_agents)
            text = f"{form}: {why}"
            plan = Plan(recipe, form, text, n, None, n if form == "async" else 0)
            if form == "vector":
                plan = Plan(recipe, form, text, 1, n, 0, apart=n)
            # rewards as Gymnasium has them: scores are sums of these
            shapes = Buffers.row_shapes(n, recipe.layout.spec, np.float64)
            self._build(plan, recipe.layout, shapes, 1, timeout)
        finally:
            recipe.close()
        with self._closing_on_failure():
            self._reset_all(self._seed)
            if self._are_masked():
                self._settle(Layout(name, *spaces, True, rescale_actions))
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
