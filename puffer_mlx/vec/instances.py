"""Environments in Python that step one after another, in one process, and their agents' arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.python_faults import RAISED, Fault, failed

__all__ = ["Buffers", "Fact", "Instance", "Instances", "Makes", "Shapes"]

Shape = tuple[tuple[int, ...], Any]  # and dtype
Shapes = dict[str, Shape]  # of each array of ``Buffers``


_NONE = np.zeros(0)


class Buffers(NamedTuple):
    """What n agents share with their environments: C-contiguous arrays."""

    observations: np.ndarray  # (n, D) rows; of PufferLib's environments (n, ...) as the space
    actions: np.ndarray  # (n, heads) float32 rows; of PufferLib's as the space
    rewards: np.ndarray  # (n,) float32; of Gymnasium's float64
    terminals: np.ndarray  # (n,) bool
    truncations: np.ndarray  # (n,) bool
    present: np.ndarray  # (n,) bool: agents that take part
    # of environments that may say so:
    legal: np.ndarray = _NONE  # (n, logits) uint8: which actions are
    tells: np.ndarray = _NONE  # (n,) bool: whether the environment said so in its first reset

    def part(self, agents: slice) -> "Buffers":
        """Those of some agents."""
        return Buffers(*(array[agents] for array in self))

    @staticmethod
    def shapes(n: int, observation: Shape, action: Shape, reward: Any = np.float32) -> Shapes:
        """Those of n agents without ``legal``, for one agent's observation and action.

        Args:
            n: agents.
            observation: shape and dtype.
            action: likewise.
            reward: dtype.
        """
        flags = (n,), np.bool_
        return {
            "observations": ((n, *observation[0]), observation[1]),
            "actions": ((n, *action[0]), action[1]),
            "rewards": ((n,), reward),
            "terminals": flags,
            "truncations": flags,
            "present": flags,
        }

    @staticmethod
    def row_shapes(n: int, spec: EnvSpec, reward: Any = np.float32) -> Shapes:
        """Those of n agents whose environments write rows, and may say which actions are legal."""
        row, action = (spec.observation_size,), spec.action
        shapes = Buffers.shapes(
            n, (row, spec.observation_dtype), ((action.heads,), np.float32), reward
        )
        if not action.continuous:
            shapes["legal"] = (n, action.logits), np.uint8
        return {**shapes, "tells": ((n,), np.bool_)}


class Fact(NamedTuple):
    """What an environment told: of the episode that ``agent`` just ended, or (-1) of several."""

    agent: int  # its place in the group, or in the instance
    numbers: dict[str, float]

    def counted_from(self, first: int) -> "Fact":
        """The same where these agents' first is number ``first``."""
        return self._replace(agent=first + self.agent) if self.agent >= 0 else self


class Instance(Protocol):
    """An environment, or several in one, whose agents write into ``Buffers``."""

    num_agents: int

    def reset(self, seed: int | None = None) -> None:
        """Begin new episodes."""
        ...

    def step(self, actions: Any) -> Sequence[Fact]:
        """A step of all agents; ``actions`` are theirs of what ``Makes.actions`` returned."""
        ...

    def render(self) -> Any:
        """What it draws; raises a ``UserError`` if it can't be drawn."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Makes(Protocol):
    """How instances are made; picklable by cloudpickle.

    Attributes:
        name: of the environment, for messages.
        keywords: its arguments.
    """

    name: str
    keywords: dict[str, Any]

    @property
    def scales(self) -> bool:
        """Whether one instance can hold as many environments as there shall be."""
        ...

    def instance(self, buffers: Buffers, seed: int, num_envs: int | None, number: int) -> Instance:
        """One that writes into ``buffers``.

        Args:
            buffers: of its agents.
            seed: of its generator, where one is made with it.
            num_envs: environments in it; None if that isn't to be chosen.
            number: of the instance among all, for messages.
        """
        ...

    def actions(self, buffered: np.ndarray) -> Any:
        """What instances take, to be sliced by agents, of the actions in the buffers."""
        ...


class Instances:
    """Instances that step one after another, each with some of the n agents of a group.

    Args:
        recipe: how they are made.
        buffers: of the n agents.
        current: (1,) int: which of them is at work, for a process that dies or hangs.
        count: how many.
        num_envs: see ``Makes.instance``.
        seed: of instance 0 of all groups.
        number: of the first instance here.

    Raises:
        UserError: they can't be made, or have other numbers of agents than expected.
    """

    def __init__(
        self,
        recipe: Makes,
        buffers: Buffers,
        current: np.ndarray,
        count: int,
        num_envs: int | None,
        seed: int,
        number: int,
    ) -> None:
        self._recipe, self._buffers, self._current = recipe, buffers, current
        self._seed, self._number = seed, number
        n = len(buffers.rewards) // count
        self._turns: list[tuple[int, Instance, slice]] = []  # with its agents
        buffers.present[:] = True
        buffers.legal[:] = 1
        try:
            for i in range(count):
                current[0], agents = i, slice(i * n, (i + 1) * n)
                one = recipe.instance(buffers.part(agents), seed + number + i, num_envs, number + i)
                self._turns.append((i, one, agents))
                if one.num_agents != n:
                    asked = "" if num_envs is None else f" with num_envs={num_envs}"
                    raise UserError(
                        f"{recipe.name}: made{asked} it has {one.num_agents} agents, expected {n}",
                        "all instances must have the same number, in proportion to num_envs",
                    )
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int | None) -> list[Fact]:
        """Begin anew; instance i of all groups with ``seed + i``, or going on drawing if None.

        Raises:
            Fault: one failed.
        """
        for i, one, _ in self._turns:
            self._current[0] = i
            try:
                one.reset(None if seed is None else seed + self._number + i)
            except RAISED as error:
                raise _located("failed in reset", error, i) from error
        return []

    def step(self) -> list[Fact]:
        """Take the actions in the buffers, and say what the environments told.

        Raises:
            Fault: one failed.
        """
        facts: list[Fact] = []
        actions, current = self._recipe.actions(self._buffers.actions), self._current
        for i, one, agents in self._turns:
            current[0] = i
            try:
                told = one.step(actions[agents])
            except RAISED as error:
                raise _located("failed in step", error, i) from error
            if told:
                facts += [fact.counted_from(agents.start) for fact in told]
        return facts

    def render(self) -> Any:
        """What the first one draws, or the ``UserError`` that says why it doesn't.

        Raises:
            Fault: it failed.
        """
        try:
            return self._turns[0][1].render()
        except UserError as error:
            return error
        except RAISED as error:
            raise _located("failed in render", error, 0) from error

    def close(self) -> None:
        """Close all of them."""
        turns, self._turns = self._turns, []
        for _, one, _ in turns:
            one.close()


def _located(what: str, error: BaseException, index: int) -> Exception:
    """A failure of one of them, as a ``Fault`` that names it; a ``UserError`` as it is."""
    if isinstance(error, UserError):
        return error
    fault = error if isinstance(error, Fault) else failed(what, error)
    index = index if fault.index is None else fault.index
    return Fault(fault.what or what, fault.text, index, fault.hint)
