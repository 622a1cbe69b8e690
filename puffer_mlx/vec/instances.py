"""Environments in Python: how they are made, their agents' arrays, and stepping them in turn."""

import inspect
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import to_install
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.python_faults import RAISED, Fault, describe, failed, undrawable
from puffer_mlx.vec.space_parts import SMALLEST

DRAWS = 'take a render_mode, and return pictures from render() if it is "rgb_array"'
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")

Shape = tuple[tuple[int, ...], Any]  # and dtype
Shapes = dict[str, Shape]  # of each array of ``Buffers``
_NONE = np.zeros(0)
_TOLD: set[str] = set()  # lines of `tell_unclosed`


class Buffers(NamedTuple):
    """What n agents share with their environments: C-contiguous arrays."""

    observations: np.ndarray  # (n, D) rows; of PufferLib's environments (n, ...) as the space
    actions: np.ndarray  # (n, heads) float32 rows; of PufferLib's as the space
    rewards: np.ndarray  # (n,) float32; of Gymnasium's float64
    terminals: np.ndarray  # (n,) bool
    truncations: np.ndarray  # (n,) bool
    present: np.ndarray  # (n,) bool: agents that take part
    # of environments that begin the next episode in the step that ends one:
    last: np.ndarray = _NONE  # (n, D): an episode's last observation, where `truncations` is set
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
    def row_shapes(n: int, layout: Layout, reward: Any = np.float32) -> Shapes:
        """Return the shapes for n agents whose environments write rows.

        Args:
            n: Agents.
            layout: Of one agent's rows, which aren't rounded to float32 here.
            reward: Dtype of rewards.
        """
        row, action = (layout.spec.observation_size,), layout.spec.action
        shapes = Buffers.shapes(n, (row, layout.exact_dtype), ((action.heads,), np.float32), reward)
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
        """A step of all agents; ``actions`` are theirs of what ``Recipe.actions`` returned."""
        ...

    def render(self) -> Any:
        """What it draws; raises a ``UserError`` if it can't be drawn."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass
class Recipe:
    """How instances of an environment are made; picklable by cloudpickle.

    Args:
        name: for messages.
        make: what makes one.
        keywords: its arguments.
        render: make it able to draw pictures.
        rescale: a continuous action's -1 to 1 is the low to high of its bounds.
        channels: ``vec.image_channels``.

    Attributes:
        agents: of an instance.
        environments: that share them.
        layout: of rows; known once an instance was looked at.
        finals: see ``VecEnv.finals``.
        shows_last: whether last observations are wanted and shown, but in no rows of their own.
        unread: keywords that count for nothing, and why.
        scales: whether one instance can hold as many environments as there shall be.
        by_environment: whether seeds and processes belong to environments, not to instances.
    """

    name: str
    make: Any
    keywords: dict[str, Any] = field(default_factory=dict)
    render: bool = False
    rescale: bool = False
    channels: str = SMALLEST
    agents: int = field(default=1, init=False)
    environments: int = field(default=1, init=False)
    layout: Any = field(default=None, init=False)
    finals: bool = True
    shows_last: bool = field(default=False, init=False)
    unread: list[str] = field(default_factory=list, init=False)
    by_environment: ClassVar[bool] = False

    @property
    def scales(self) -> bool:
        """See the attributes."""
        return False

    def look(self, seed: int) -> None:
        """Make an instance to see its agents and, unless that is ``settle``'s, its layout."""

    def settle(self, form: str, environments: int) -> None:
        """A group of so many environments steps in this form: the layout is known from now on."""

    def vector_form(self) -> tuple[str, str]:
        """What the vectorised form is, and what it lacks; "" if it can be used."""
        return "", "it takes no num_envs"

    def layout_of(self, observation: Any, action: Any, masked: bool = False) -> Layout:
        """Return how spaces of one agent lie in rows; ``masked``: it gets masks of actions."""
        return Layout(self.name, observation, action, masked, self.rescale, self.channels)

    def shapes(self, n: int) -> Shapes:
        """Of the buffers of n agents."""
        return Buffers.row_shapes(n, self.layout)

    def instance(self, buffers: Buffers, seed: int, num_envs: int | None, number: int) -> Instance:
        """One that writes into ``buffers``.

        Args:
            buffers: of its agents.
            seed: of its generator, where one is made with it.
            num_envs: environments in it; None if that isn't to be chosen.
            number: of the instance among all, for messages.
        """
        raise NotImplementedError

    def buffered(self, actions: np.ndarray) -> Any:
        """A policy's actions as they lie in the buffers."""
        return actions

    def actions(self, buffered: np.ndarray) -> Any:
        """What instances take, to be sliced by agents, of the actions in the buffers."""
        return self.layout.each_action(buffered)

    def arguments(self) -> dict[str, Any]:
        """What ``make`` is called with."""
        return {**self.keywords, "render_mode": "rgb_array"} if self.render else self.keywords

    def takes(self) -> list[str]:
        """The arguments that ``make`` names, for the message about another one."""
        return named_parameters(self.make)

    @contextmanager
    def explained(self, number: int | None = None, seed: int = 0) -> Iterator[None]:
        """Report what goes wrong when instance ``number`` is made; ``seed``: of number 0.

        Raises:
            UserError: instead of it.
        """
        try:
            yield
        except UserError:
            raise
        except ModuleNotFoundError as error:
            raise UserError(f"{self.name}: {error}", to_install(error)) from None
        except RAISED as error:
            if hint := undrawable(error):
                raise UserError(f"{self.name} can't be drawn: {error}", hint) from None
            word = _KEYWORD.search(str(error)) if isinstance(error, TypeError) else None
            if word and word[1] in self.arguments():
                raise self.unknown(word[1]) from None
            fault = Fault("failed when it was made", describe(error), number)
            raise fault.report(self.name, 0, seed) from error

    def unknown(self, key: str) -> UserError:
        """What to say of an argument that ``make`` doesn't take."""
        if key == "render_mode" and key not in self.keywords:
            return UserError(f"{self.name}: it can't be drawn: it takes no render_mode", DRAWS)
        names = ", ".join(self.takes())
        hint = f"it takes {names}" if names else "leave it out"
        return UserError(f"{self.name}: it takes no env.{key}", hint)

    def close(self) -> None:
        """Close what was looked at and isn't in use."""


def parameters(make: Any) -> Mapping[str, inspect.Parameter]:
    """Of a function or class; none if it doesn't tell."""
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # built in, or no function at all
        return {}


def named_parameters(make: Any) -> list[str]:
    """The names of those that can be given by name."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [name for name, each in parameters(make).items() if each.kind in kinds]


def other_kind(name: str, env: Any, expected: str, hint: str) -> UserError:
    """What to say where another object was made than an environment of the expected class."""
    kind = f"{type(env).__module__}.{type(env).__qualname__}"
    return UserError(f"{name}: it made a {kind}, expected a {expected}", hint)


def close_if_possible(env: Any) -> str:
    """Close an object that may be an environment. Returns what ``close`` raised, "" if nothing."""
    try:
        if callable(close := getattr(env, "close", None)):
            close()
    except RAISED as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def tell_unclosed(name: str, fault: str) -> None:
    """Print a line about an environment that couldn't be closed, the same line once.

    Args:
        name: Of the environments.
        fault: What ``close_if_possible`` returned; nothing is printed for "".
    """
    line = f"puffer_mlx: {name}: close() of an environment failed, which is ignored: {fault}"
    if fault and line not in _TOLD:
        _TOLD.add(line)
        print(line, file=sys.stderr)


class Instances:
    """Instances that step one after another, each with some of the n agents of a group.

    Args:
        recipe: how they are made.
        buffers: of the n agents.
        current: (1,) int: which of them is at work, for a process that dies or hangs.
        busy: (1,) float64: seconds that they have spent in steps.
        count: how many.
        num_envs: see ``Recipe.instance``.
        seed: of instance 0 of all groups.
        number: of the first instance here.

    Raises:
        UserError: they can't be made, or have other numbers of agents than expected.
    """

    def __init__(
        self,
        recipe: Recipe,
        buffers: Buffers,
        current: np.ndarray,
        busy: np.ndarray,
        *,
        count: int,
        num_envs: int | None,
        seed: int,
        number: int,
    ) -> None:
        self.buffers = buffers
        self._recipe, self._current, self._busy = recipe, current, busy
        self._seed, self._number, self._seconds = seed, number, 0.0
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
                    wanted = "" if num_envs is None else f" with num_envs={num_envs}"
                    raise UserError(
                        f"{recipe.name}: made{wanted} it has {one.num_agents} agents, expected {n}",
                        "all instances must have the same number, in proportion to num_envs",
                    )
        except BaseException:
            self.close_all()
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
        """Take the actions in the buffers, and return what the environments told.

        Raises:
            Fault: one failed.
        """
        began, facts = time.perf_counter(), []
        actions, current = self._recipe.actions(self.buffers.actions), self._current
        for i, one, agents in self._turns:
            current[0] = i
            try:
                news = one.step(actions[agents])
            except RAISED as error:
                raise _located("failed in step", error, i) from error
            if news:
                facts += [fact.counted_from(agents.start) for fact in news]
        self._seconds += time.perf_counter() - began
        self._busy[0] = self._seconds
        return facts

    def picture(self) -> Any:
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

    def close_all(self) -> str:
        """Close all instances. Returns what the first failing ``close`` raised, "" if none did."""
        turns, self._turns = self._turns, []
        faults = [close_if_possible(one) for _, one, _ in turns]
        return next(filter(None, faults), "")


def _located(what: str, error: BaseException, index: int) -> Exception:
    """A failure of one of them, as a ``Fault`` that names it; a ``UserError`` as it is."""
    if isinstance(error, UserError):
        return error
    fault = error if isinstance(error, Fault) else failed(what, error)
    index = index if fault.index is None else fault.index
    return Fault(fault.what or what, fault.text, index, fault.hint)
