"""Gymnasium's environments as a ``VecEnv``: by id or made by a function, one agent each.

Gymnasium's own vector environments do the stepping, one for each of the Q groups. Here their
results become rows, and what goes wrong becomes one message.

| form | steps | an episode's last observation |
| --- | --- | --- |
| vector | all at once, in the environment's own way | as it has it; mostly a row of its own |
| sync | one after the other, in this process | a row of its own if ``finals`` |
| async | each in a process of its own | a row of its own if ``finals`` |

``sync`` and ``async`` give the same rows, bit for bit: environment i is seeded with ``seed + i``.
A vectorised form has one generator for each group, seeded with ``seed`` plus the number of the
group's first environment: other rows, which depend on ``num_buffers`` too.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.episodes import Episodes
from puffer_mlx.vec.finite import check_finite
from puffer_mlx.vec.gym.backends import build, choose, tells_finals
from puffer_mlx.vec.gym.episode_ends import EpisodeEnds
from puffer_mlx.vec.gym.infos import MASK, Masks, ended_infos
from puffer_mlx.vec.gym.installed import gymnasium
from puffer_mlx.vec.gym.make import Recipe, quiet
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.python_faults import RAISED, Fault, locate, undrawable
from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.rows import RowShapes, check_picture

__all__ = ["GymVec"]

_SEED_LIMIT = 2**32


class GymVec(PythonVec[Any, tuple[Any, Rows]]):
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

    Attributes:
        layout: how observations and actions lie in rows; ``layout.restore`` gives Dicts and Tuples
            back.

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
        self._envs, self._under_way = [], [None] * num_buffers
        if total_agents % num_buffers:
            raise UserError(
                f"{name}: vec.total_agents {total_agents} is not a multiple of vec.num_buffers "
                f"{num_buffers}",
                f"{num_buffers * max(1, total_agents // num_buffers)} is",
            )
        self._name, self._seed = name, seed % _SEED_LIMIT
        self.num_agents = self.num_environments = total_agents
        self.num_groups, self.num_threads = num_buffers, num_threads
        self._n = n = total_agents // num_buffers
        self._groups = [slice(g * n, (g + 1) * n) for g in range(num_buffers)]
        self._busy = 0.0
        recipe = Recipe(name, make, dict(env or {}), render, wrap or Wrap(), total_agents)
        self.unread = recipe.unread  # Gymnasium refuses what it doesn't know
        self.backend, why = choose(recipe, total_agents, backend)
        self.description = f"{self.backend}: {why}"
        try:
            self._make(recipe, finals, timeout, rescale_actions)
        except BaseException:
            self.close()
            raise
        self.spec = self.layout.spec
        self._rows, self._all_rows = RowShapes(self.spec, n), RowShapes(self.spec, total_agents)
        self._seeds = range(self._seed, self._seed + total_agents)
        self._episodes = Episodes(total_agents)

    def _make(self, recipe: Recipe, finals: bool, timeout: float, rescale: bool) -> None:
        for agents in self._groups:
            try:
                self._envs.append(build(recipe, self._n, self.backend, finals, timeout))
            except Fault as found:
                raise found.report(self._name, agents.start, self._seed) from None
        one = self._envs[0]
        self.finals = tells_finals(self._name, one)
        self._ends = [EpisodeEnds(self._n, self.finals) for _ in self._groups]
        self._first = self._first_resets(seeded=True)
        spaces = one.single_observation_space, one.single_action_space
        masked = MASK in self._first[0][1]
        self.layout = Layout(self._name, *spaces, masked, rescale)
        groups = self._groups if masked else []
        self._masks = [Masks(self._name, spaces[1], agents.start) for agents in groups]

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents; write their first rows, rewards and terminals 0.

        Waits for steps under way. The first time, environments are as their seeds have them; after
        that they go on drawing from their generators.

        Raises:
            UserError: an environment failed; all are closed then.
        """
        self._all_rows.check(out)
        for group in range(self.num_groups):
            self.wait(group)
        first, self._first = self._first or self._first_resets(), []
        self._episodes.restart()
        out.rewards[:] = 0
        out.terminals[:] = 0
        if out.finals is not None:
            out.finals[:] = 0
        for group, (observations, infos) in enumerate(first):
            self._ends[group].restart()
            try:
                self._write(group, observations, infos, out.part(self._groups[group]))
            except RAISED as error:
                self._fail(group, error, "failed in reset")

    def _begin(self, group: int, env: Any, actions: np.ndarray, out: Rows) -> tuple[Any, Rows]:
        chosen = self.layout.actions(actions)  # a copy
        if self.backend == "async":
            try:
                env.step_async(chosen)
            except RAISED as error:
                self._fail(group, error)
        return chosen, out

    def _end(self, group: int, env: Any, step: tuple[Any, Rows]) -> None:
        chosen, out = step
        began = time.perf_counter()
        try:
            if self.backend == "async":
                found = env.step_wait()
            else:
                found = env.step(chosen)
                self._busy += time.perf_counter() - began
            self._arrive(group, out, *found)
        except RAISED as error:
            self._fail(group, error)

    def _arrive(
        self,
        group: int,
        out: Rows,
        observations: Any,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: dict[str, Any],
    ) -> None:
        """Write what a vector environment returned."""
        over, resets = self._ends[group].write(terminated, truncated, out)
        told = infos if self.finals else infos.get("final_info")
        told = ended_infos(told, over) if told and self._ends[group].any_over else None
        out.rewards[:] = rewards
        first = self._groups[group].start
        self._episodes.add(rewards, over, first=first, resets=resets, infos=told)
        self._write(group, observations, infos, out)

    def _write(self, group: int, observations: Any, infos: dict[str, Any], out: Rows) -> None:
        self.layout.write(observations, out.observations)
        if out.masks is not None:
            last = self._ends[group].over if self.finals else None
            self._masks[group].write(infos, last, out.masks)
        first = self._groups[group].start
        check_finite(self._name, out.observations, out.rewards, first, self._seeds)

    def render(self) -> np.ndarray:
        """Environment 0's picture (h, w, 3) uint8.

        Raises:
            UserError: it can't be drawn.
        """
        try:
            with quiet():
                frames = self._open(0).render()
        except gymnasium().error.DependencyNotInstalled as error:
            raise UserError(f"{self._name} can't be drawn: {error}", "install that") from None
        except RAISED as error:
            if hint := undrawable(error):
                raise UserError(f"{self._name} can't be drawn: {error}", hint) from None
            self._fail(0, error, "failed in render")
        return check_picture(self._name, None if frames is None else frames[0])

    def busy_seconds(self) -> float:
        """Seconds spent inside environment steps, of all processes together.

        Processes are asked between steps; while one is under way it is what it was then.
        """
        if self.backend == "async" and not any(self._under_way):
            busy = 0.0
            for group, env in enumerate(self._envs):
                try:
                    busy += env.busy_seconds()
                except RAISED as error:
                    self._fail(group, error)
            self._busy = busy
        return self._busy

    def _first_resets(self, seeded: bool = False) -> list[tuple[Any, dict[str, Any]]]:
        """Reset all groups; (observations, infos) of each."""
        found = []
        for step in "begin", "end":
            for env, agents in zip(self._envs, self._groups, strict=True):
                seed = self._seed + agents.start if seeded else None
                try:
                    if self.backend == "async":
                        env.reset_async(seed=seed) if step == "begin" else found.append(
                            env.reset_wait()
                        )
                    elif step == "end":
                        found.append(env.reset(seed=seed))
                except RAISED as error:
                    self._fail(agents.start // self._n, error, "failed in reset")
        return found

    def _fail(self, group: int, error: BaseException, what: str = "failed in step") -> NoReturn:
        """Close everything, and say what happened in one message."""
        if not isinstance(error, UserError):
            found = error if isinstance(error, Fault) else locate(error, self._envs[group], what)
            error = found.report(self._name, self._groups[group].start, self._seed)
        self.close()
        raise error from None
