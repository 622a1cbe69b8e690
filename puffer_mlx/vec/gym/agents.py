"""Gymnasium's environments as instances that the pool steps: one, or a vectorised form of many."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.episodes import numbers_of
from puffer_mlx.vec.gym.infos import MASK, Masks, ended_infos
from puffer_mlx.vec.gym.installed import gymnasium, quiet
from puffer_mlx.vec.instances import Buffers, Fact
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.python_faults import NOBODY_KNOWS, RAISED, failed, form_fault, undrawable

__all__ = ["Agent", "VectorForm"]


class Agent:
    """One ``gymnasium.Env``, whose agent writes its row.

    Args:
        name: for messages.
        env: the environment.
        buffers: of its agent.
        layout: of rows.
        finals: whether an episode's last observation has a row of its own: then the next step
            begins the next episode, else the same.
    """

    num_agents = 1

    def __init__(self, name: str, env: Any, buffers: Buffers, layout: Layout, finals: bool) -> None:
        self._name, self._env, self._finals = name, env, finals
        self._rewards, self._legal, self._tells = buffers.rewards, buffers.legal, buffers.tells
        self._terminals, self._truncations = buffers.terminals, buffers.truncations
        self._write = layout.writer(buffers.observations[0])
        self._masks: Masks | None = None
        self._fresh = True
        self._over = False

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self._over = False
        self._rewards[0] = 0
        self._terminals[0] = self._truncations[0] = False
        self._begin(**({} if seed is None else {"seed": seed}))

    def step(self, actions: list[Any]) -> Sequence[Fact]:
        """A step, or the next episode's beginning."""
        if self._over:
            self.reset()
            return ()
        result = self._env.step(actions[0])
        if len(result) != 5 and (fault := form_fault("step", result)):
            raise fault
        seen, reward, terminated, truncated, info = result
        self._rewards[0] = reward
        self._terminals[0], self._truncations[0] = terminated, truncated
        if not (terminated or truncated):
            self._show(seen, info)
            return ()
        if self._finals:
            self._over = True
            self._write(seen)
            self._legal[:] = 1  # no action counts
        else:
            self._begin()
        return [Fact(0, numbers)] if (numbers := numbers_of(info)) else ()

    def render(self) -> Any:
        """What it draws."""
        return drawn(self._name, self._env)

    def close(self) -> None:
        """Close it."""
        self._env.close()

    def _begin(self, **keywords: Any) -> None:
        try:
            result = self._env.reset(**keywords)
        except RAISED as error:
            raise failed("failed in reset", error) from error
        if fault := form_fault("reset", result):
            raise fault
        seen, info = result
        if self._fresh:
            self._fresh = False
            if MASK in info:
                self._masks = Masks(self._name, self._env.action_space)
                self._tells[:] = True
        self._show(seen, info)

    def _show(self, seen: Any, info: Mapping[str, Any]) -> None:
        self._write(seen)
        if self._masks is not None:
            self._masks.write(info.get(MASK), self._legal[0])


class VectorForm:
    """A ``gymnasium.vector.VectorEnv``, whose agents write their rows.

    Args:
        name: for messages.
        env: the environments.
        buffers: of their agents.
        layout: of rows.
        finals: whether an episode's last observation has a row of its own.
    """

    def __init__(self, name: str, env: Any, buffers: Buffers, layout: Layout, finals: bool) -> None:
        self._name, self._env, self._finals = name, env, finals
        self._buffers, self._layout = buffers, layout
        self.num_agents = env.num_envs
        self._masks: Masks | None = None
        self._fresh = True

    def reset(self, seed: int | None = None) -> None:
        """Begin new episodes."""
        try:
            seen, infos = self._env.reset(seed=seed)
        except RAISED as error:
            raise failed("failed in reset", error, NOBODY_KNOWS) from error
        buffers = self._buffers
        buffers.rewards[:] = 0
        buffers.terminals[:] = buffers.truncations[:] = False
        if self._fresh and MASK in infos:
            self._masks = Masks(self._name, self._env.single_action_space)
            buffers.tells[:] = True
        self._fresh = False
        self._layout.write(seen, buffers.observations)
        self._show_legal(infos, buffers.terminals)

    def step(self, actions: Any) -> Sequence[Fact]:
        """A step of all of them."""
        try:
            seen, rewards, terminated, truncated, infos = self._env.step(actions)
        except RAISED as error:
            raise failed("failed in step", error, NOBODY_KNOWS) from error
        buffers = self._buffers
        buffers.rewards[:], buffers.terminals[:] = rewards, terminated
        buffers.truncations[:] = truncated
        self._layout.write(seen, buffers.observations)
        if not infos and self._masks is None:
            return ()
        over = np.logical_or(terminated, truncated)
        self._show_legal(infos, over if self._finals else np.zeros_like(over))
        told = infos if self._finals else infos.get("final_info")
        if not told or not over.any():
            return ()
        return [Fact(place, numbers_of(info)) for place, info in ended_infos(told, over).items()]

    def render(self) -> Any:
        """What the first of them draws."""
        frames = drawn(self._name, self._env)
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close them."""
        self._env.close()

    def _show_legal(self, infos: Mapping[str, Any], last: np.ndarray) -> None:
        """Masks: everything is legal where an episode's last observation is shown."""
        if self._masks is None:
            return
        given = infos.get(f"_{MASK}", np.full(len(last), MASK in infos))
        for place, row in enumerate(self._buffers.legal):
            if last[place]:
                row[:] = 1
            else:
                self._masks.write(infos[MASK][place] if given[place] else None, row, place)


def drawn(name: str, env: Any) -> Any:
    """What an environment's ``render`` returns.

    Raises:
        UserError: what it needs to draw isn't there.
    """
    try:
        with quiet():
            return env.render()
    except gymnasium().error.DependencyNotInstalled as error:
        raise UserError(f"{name} can't be drawn: {error}", "install that") from None
    except RAISED as error:
        if hint := undrawable(error):
            raise UserError(f"{name} can't be drawn: {error}", hint) from None
        raise
