"""Gymnasium's environments as instances: a single one, or a vectorised form."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.episodes import numbers_of
from puffer_mlx.vec.gym.installed import gymnasium, quiet
from puffer_mlx.vec.instances import Buffers, EpisodeInfo
from puffer_mlx.vec.layout import SpaceLayout
from puffer_mlx.vec.python_faults import (
    RAISED,
    UNKNOWN,
    Fault,
    all_flags,
    all_numbers,
    as_info,
    failed,
    failing,
    form_fault,
    one_flag,
    one_number,
    undrawable,
)
from puffer_mlx.vec.spaces import choices_of, kind_of

MASK = "action_mask"  # key of action masks in infos of Gymnasium's environments
LAST = "final_obs"  # of Gymnasium's SAME_STEP mode
NO_MASK = "gave no action mask"
HINT = (
    f'give info["{MASK}"] in every reset and step, for each choice of each head 1 where it is legal'
)


class GymInstance:
    """One ``gymnasium.Env``, whose agent writes its row.

    Args:
        name: Name of the environment, for messages.
        env: The environment.
        buffers: Arrays of its agent.
        layout: Layout of rows.
        finals: True if an episode's last observation has a separate row: then the next step begins
            the next episode, else the same step.
    """

    num_agents = 1

    def __init__(
        self, name: str, env: Any, buffers: Buffers, layout: SpaceLayout, finals: bool
    ) -> None:
        self._name = name
        self._env = env
        self._finals = finals
        self._rewards = buffers.rewards
        self._legal = buffers.legal
        self._terminals = buffers.terminals
        self._truncations = buffers.truncations
        self._write = layout.writer(buffers.observations[0])
        self._masks = Masks(name, env.action_space) if layout.spec.mask_size else None
        self._over = False

    def reset(self, seed: int | None = None) -> None:
        """Start an episode."""
        self._over = False
        self._rewards[0] = 0
        self._terminals[0] = self._truncations[0] = False
        self._begin(**({} if seed is None else {"seed": seed}))

    def step(self, actions: list[Any]) -> Sequence[EpisodeInfo]:
        """Step the environment, or begin its next episode if the last step ended one.

        Raises:
            Fault: It returned something else than a step's five values.
        """
        if self._over:
            self.reset()
            return ()
        result = self._env.step(actions[0])
        if (type(result) is not tuple or len(result) != 5) and (
            fault := form_fault("step", result)
        ):
            raise fault
        seen, reward, terminated, truncated, info = result
        # Check the usual types inline: calls would slow down cheap environments.
        self._rewards[0] = reward if type(reward) is float else one_number(reward, "a reward")
        if type(terminated) is not bool:
            terminated = one_flag(terminated, "terminated")
        if type(truncated) is not bool:
            truncated = one_flag(truncated, "truncated")
        self._terminals[0], self._truncations[0] = terminated, truncated
        if type(info) is not dict:
            info = as_info(info)
        if not (terminated or truncated):
            self._show(seen, info)
            return ()
        if self._finals:
            self._over = True
            self._write(seen)
            self._legal[:] = 1  # no action counts
        else:
            self._begin()
        return [EpisodeInfo(0, numbers)] if (numbers := numbers_of(info)) else ()

    def render(self) -> Any:
        """Return its picture."""
        return drawn(self._name, self._env)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _begin(self, **keywords: Any) -> None:
        with failing("failed in reset"):
            result = self._env.reset(**keywords)
        if fault := form_fault("reset", result):
            raise fault
        self._show(result[0], as_info(result[1]))

    def _show(self, seen: Any, info: Mapping[str, Any]) -> None:
        self._write(seen)
        if self._masks is not None:
            self._masks.write(info.get(MASK), self._legal[0])


class VectorInstance:
    """A ``gymnasium.vector.VectorEnv``, whose agents write their rows.

    Args:
        name: Name of the environments, for messages.
        env: The environments.
        buffers: Arrays of their agents.
        layout: Layout of rows.
        finals: True if an episode's last observation has a separate row.

    Attributes:
        bookkeeping: Keys of infos that aren't numbers of an episode.
    """

    bookkeeping: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, name: str, env: Any, buffers: Buffers, layout: SpaceLayout, finals: bool
    ) -> None:
        self._name = name
        self._env = env
        self._finals = finals
        self._buffers = buffers
        self._layout = layout
        self.num_agents = env.num_envs
        self._last = [layout.writer(row) for row in buffers.last]
        self._masks = Masks(name, env.single_action_space) if layout.spec.mask_size else None

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes.

        Raises:
            Fault: It failed, or returned something else than observations and infos.
        """
        with failing("failed in reset", UNKNOWN):
            result = self._env.reset(seed=seed)
        if fault := form_fault("reset", result, UNKNOWN):
            raise fault
        seen = result[0]
        infos = as_info(result[1], UNKNOWN)
        buffers = self._buffers
        buffers.rewards[:] = 0
        buffers.terminals[:] = buffers.truncations[:] = False
        self._layout.write(seen, buffers.observations)
        self._show_legal(infos, buffers.terminals)

    def step(self, actions: Any) -> Sequence[EpisodeInfo]:
        """Step all environments.

        Raises:
            Fault: One failed, or they returned something else than a step's five values.
        """
        try:  # no context manager: it takes a microsecond
            result = self._env.step(actions)
        except RAISED as error:
            raise failed("failed in step", error, UNKNOWN) from error
        if fault := form_fault("step", result, UNKNOWN):
            raise fault
        seen, rewards, terminated, truncated, infos = result
        n = self.num_agents
        buffers = self._buffers
        infos = as_info(infos, UNKNOWN)
        buffers.rewards[:] = all_numbers(rewards, "rewards", n)
        buffers.terminals[:] = all_flags(terminated, "terminated", n)
        buffers.truncations[:] = all_flags(truncated, "truncated", n)
        self._layout.write(seen, buffers.observations)
        if not infos and self._masks is None and not self._last:
            return ()
        over = np.logical_or(buffers.terminals, buffers.truncations)
        if self._last:
            self._show_last(infos)
        self._show_legal(infos, over if self._finals else np.zeros_like(over))
        ended = infos if self._finals else infos.get("final_info")
        if not ended or not over.any():
            return ()
        return [
            EpisodeInfo(place, numbers_of(self._without_bookkeeping(info)))
            for place, info in ended_infos(ended, over).items()
        ]

    def _without_bookkeeping(self, info: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in info.items() if key not in self.bookkeeping}

    def render(self) -> Any:
        """Return the picture of the first one."""
        frames = drawn(self._name, self._env)
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    def _show_last(self, infos: Mapping[str, Any]) -> None:
        """Write last observations of episodes that a time limit ended.

        Raises:
            Fault: They aren't in infos.
        """
        buffers = self._buffers
        for place in np.flatnonzero(buffers.truncations & ~buffers.terminals).tolist():
            seen = _of({LAST: infos[LAST]}, place).get(LAST) if LAST in infos else None
            if seen is None:
                what = f'truncated an episode without its last observation, infos["{LAST}"]'
                hint = "give it, as SAME_STEP asks for; or --train.bootstrap-truncated 0"
                raise Fault(what, "", UNKNOWN, hint)
            self._last[place](seen)

    def _show_legal(self, infos: Mapping[str, Any], last: np.ndarray) -> None:
        """Write masks; every action is legal at an episode's last observation."""
        if self._masks is None:
            return
        has = infos.get(f"_{MASK}", np.full(len(last), MASK in infos))
        for place, row in enumerate(self._buffers.legal):
            if last[place]:
                row[:] = 1
            else:
                self._masks.write(infos[MASK][place] if has[place] else None, row, place)


def drawn(name: str, env: Any) -> Any:
    """Return the result of an environment's ``render``.

    Raises:
        UserError: A package that it needs to draw is missing.
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


class Masks:
    """Writes the action masks of environments.

    Args:
        name: Name of the environment, for messages.
        action_space: Action space of one agent.

    Raises:
        UserError: The actions aren't discrete.
    """

    def __init__(self, name: str, action_space: Any) -> None:
        if kind_of(action_space) not in ("Discrete", "MultiDiscrete"):
            raise UserError(
                f'{name}: info["{MASK}"] is there, but actions are {action_space}',
                "masks are for Discrete and MultiDiscrete; leave it out",
            )
        sizes, _ = choices_of(action_space)
        # a policy has no head for a single choice
        self._columns = np.flatnonzero(np.repeat(np.array(sizes) > 1, sizes))
        self._choices = sum(sizes)

    def write(self, mask: Any, out: np.ndarray, index: int | None = None) -> None:
        """Write the mask of one agent.

        Args:
            mask: Array, or a list of arrays by head; None is an error.
            out: (logits,) uint8.
            index: Index of the agent, for messages.

        Raises:
            Fault: The mask is missing, or has another size.
        """
        parts = mask if isinstance(mask, tuple | list) else (mask,)
        if mask is None or any(part is None for part in parts):
            raise Fault(NO_MASK, "", index, HINT)
        row = np.concatenate([np.ravel(part) for part in parts])
        if row.shape != (self._choices,):
            what = f"gave an action mask of {row.size} numbers, expected {self._choices}"
            raise Fault(what, "", index, HINT)
        np.not_equal(row[self._columns], 0, out=out)


def ended_infos(infos: Mapping[str, Any], over: np.ndarray) -> dict[int, dict[str, Any]]:
    """Return the infos of environments whose episode ended, by index.

    Args:
        infos: Merged infos of a vectorised form.
        over: (n,) bool, True where an episode ended.
    """
    return {place: _of(infos, place) for place in np.flatnonzero(over).tolist()}


def _of(infos: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return the info of one environment."""
    one = {}
    for key, values in infos.items():
        if f"_{key}" in infos and not infos[f"_{key}"][place]:
            continue
        if isinstance(values, Mapping):
            one[key] = _of(values, place)
        elif not (key.startswith("_") and key[1:] in infos) and len(values) > place:
            one[key] = values[place]
    return one
