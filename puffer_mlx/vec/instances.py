"""Environments in Python: the factory protocol, the agents' arrays, and sequential steps."""

import contextlib
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
from puffer_mlx.vec.env_failures import (
    ENV_EXCEPTIONS,
    EnvFailure,
    describe_exception,
    drawing_hint,
    failure_of,
)
from puffer_mlx.vec.layout import SpaceLayout
from puffer_mlx.vec.rows import random_actions
from puffer_mlx.vec.spaces import CHANNELS_SMALLEST

DRAWS = 'take a render_mode, and return pictures from render() if it is "rgb_array"'
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")
_MEASURED_SECONDS = 0.05  # longest measurement of a step, made twice
_MEASURED_STEPS = 100
_CACHED_PROBES = 32

BufferShapes = dict[
    str, tuple[tuple[int, ...], Any]
]  # shape and dtype of each array of ``Buffers``
_EMPTY_ARRAY = np.zeros(0)
_printed_lines: set[str] = set()  # lines that `report_unclosed` printed


class Buffers(NamedTuple):
    """Arrays that n agents share with their environments, C-contiguous."""

    observations: np.ndarray  # (n, D), dtype ``SpaceLayout.exact_dtype``
    actions: np.ndarray  # (n, heads) float32
    rewards: np.ndarray  # (n,) float32; of Gymnasium's environments float64
    terminals: np.ndarray  # (n,) bool
    truncations: np.ndarray  # (n,) bool
    present: np.ndarray  # (n,) bool: agents for which the step counts
    last: np.ndarray = (
        _EMPTY_ARRAY  # (n, D): last observations, where the same step begins an episode
    )
    legal: np.ndarray = (
        _EMPTY_ARRAY  # (n, logits) uint8: legal actions, if the environment masks them
    )

    def select(self, agents: slice) -> "Buffers":
        """Return the same arrays for some of the agents."""
        return Buffers(*(array[agents] for array in self))

    @staticmethod
    def allocate(shapes: BufferShapes) -> "Buffers":
        """Return buffers of zeros in this process."""
        return Buffers(**{key: np.zeros(*kind) for key, kind in shapes.items()})


class EpisodeInfo(NamedTuple):
    """Numbers that an environment reported for an episode, or for several episodes."""

    agent: int  # index of the agent whose episode ended; -1 for several episodes
    numbers: dict[str, float]

    def shifted(self, first: int) -> "EpisodeInfo":
        """Return the same numbers with the agent's index counted from ``first``."""
        return self._replace(agent=first + self.agent) if self.agent >= 0 else self


class Instance(Protocol):
    """One environment, or several in one object, whose agents write into ``Buffers``."""

    num_agents: int

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes."""
        ...

    def step(self, actions: Any) -> Sequence[EpisodeInfo]:
        """Step all agents.

        Args:
            actions: The agents' part of the result of ``EnvFactory.actions``.
        """
        ...

    def render(self) -> Any:
        """Return a picture, or True if the environment draws in its own window.

        Raises:
            UserError: The environment can't be drawn.
        """
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


@dataclass
class Probe:
    """Properties of a new environment, found once and cached (``EnvFactory.probe``).

    Args:
        spaces: Observation and action space of one agent.
        agents: Number of agents of one instance.
        environments: Number of environments of one instance, which share its agents.
        masked: True if it reports legal actions.
        next_step: True if a vectorised form begins an episode in the step after the last one.
        packed: Dtype of the packed observations of PufferLib's emulation, or None.
        buffered: Spaces of the arrays that PufferLib's environments write into.
        step_seconds: Measured duration of a step, or None.
    """

    spaces: tuple[Any, Any]
    agents: int = 1
    environments: int = 1
    masked: bool = False
    next_step: bool = True
    packed: np.dtype | None = None
    buffered: Any = None
    step_seconds: float | None = None


_PROBES: dict[Any, tuple[Any, Probe]] = {}  # by `EnvFactory._key`, with the keyed constructor


@dataclass
class EnvFactory:
    """Makes instances of an environment; picklable by cloudpickle.

    A subclass implements ``open``, ``spaces_of``, ``describe`` and ``as_instance``.

    Args:
        name: Name of the environment, for messages.
        constructor: Class or function that returns an environment.
        keywords: Arguments of the constructor.
        render: Make environments that can draw pictures.
        rescale: Map -1 to 1 of a continuous action to its bounds.
        channels: ``vec.image_channels``.

    Attributes:
        agents: Agents of one instance, after ``probe``; also ``environments`` and ``layout``.
        finals: True if an episode's last observation has a separate row (``VecEnv.finals``).
        reports_final_observations: True if last observations are reported beside the rows.
        unused: Keywords without effect, each with the reason.
        vectorised: True if instances are the environment's vectorised form.
        from_cache: True if the probe was found in the cache.
        by_environment: True if seeds and processes belong to environments, not to instances.
        reseeds: True if every reset of all environments has new seeds, not only the first.
    """

    name: str
    constructor: Any
    keywords: dict[str, Any] = field(default_factory=dict)
    render: bool = False
    rescale: bool = False
    channels: str = CHANNELS_SMALLEST
    agents: int = field(default=1, init=False)
    environments: int = field(default=1, init=False)
    layout: Any = field(default=None, init=False)
    step_seconds: float | None = field(default=None, init=False)
    finals: bool = True
    reports_final_observations: bool = field(default=False, init=False)
    unused: list[str] = field(default_factory=list, init=False)
    vectorised: bool = field(default=False, init=False)
    from_cache: bool = field(default=False, init=False)
    by_environment: ClassVar[bool] = False
    reseeds: ClassVar[bool] = True
    reward_dtype: ClassVar[Any] = np.float32

    # ---- the protocol ----------------------------------------------------------------------------

    def make(self, seed: int, count: int | None, buffers: Buffers, number: int) -> Instance:
        """Make an instance whose agents write into ``buffers``.

        Args:
            seed: Seed of its random generator.
            count: Number of environments in the instance; None for the fixed number.
            buffers: Arrays of its agents.
            number: Index of the instance, for messages.

        Raises:
            UserError: It can't be made, or has other spaces than the environment that was probed.
        """
        env = self.open(seed, count, number)
        spaces = zip(self.spaces_of(env), self.layout.spaces, strict=True)
        for what, (space, first) in zip(("observation", "action"), spaces, strict=True):
            if space != first:
                close_if_possible(env)
                text = f"its {what} space is {space}, that of environment 0 {first}"
                fault = EnvFailure("failed when it was made", text, number)
                raise fault.report(self.name, 0, seed - number)
        return self.as_instance(env, buffers)

    def open(self, seed: int, count: int | None, number: int) -> Any:
        """Return a new environment; arguments as of ``make``."""
        raise NotImplementedError

    def spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return the observation space and the action space of one agent."""
        raise NotImplementedError

    def describe(self, env: Any, seed: int) -> Probe:
        """Return what a new environment shows; may reset it."""
        raise NotImplementedError

    def as_instance(self, env: Any, buffers: Buffers) -> Instance:
        """Return an environment as an instance that writes into ``buffers``."""
        raise NotImplementedError

    @property
    def scales(self) -> bool:
        """True if one instance can hold any number of environments."""
        return False

    def vectorised_version(self) -> tuple[str, str]:
        """Return the name of the vectorised form, and why it can't be used ("" if it can)."""
        return "", "it takes no num_envs"

    # ---- what a new environment shows ------------------------------------------------------------

    def probe(self, backend: str = "sync", seed: int = 0, measure: bool = False) -> None:
        """Make one environment to find its agents, spaces and action masks, or use the cache.

        Args:
            backend: ``vec.backend``: with ``auto`` and ``vector`` the vectorised form is probed.
            seed: Seed of the environment.
            measure: Measure the duration of a step, unless a vectorised form is used.

        Raises:
            UserError: The environment can't be made, fails, or has a space that rows can't hold.
        """
        reason = (
            self.vectorised_version()[1] if backend in ("auto", "vector") else "it isn't asked for"
        )
        if backend == "vector" and reason:
            fixed = "num_envs" in self.keywords
            raise UserError(
                f"{self.name}: vec.backend is vector, but {reason}",
                "leave env.num_envs out" if fixed else "set vec.backend to sync or async",
            )
        self.vectorised = not reason
        measure = measure and not self.vectorised
        key = self._key()
        _, known = _PROBES.get(key, (None, None)) if key else (None, None)
        if known is not None and (known.step_seconds is not None or not measure):
            self.from_cache = True
            self._apply(known)
            return
        self.from_cache = False
        with contextlib.chdir("."):  # the environment may change the folder
            env = self.open(seed, 1 if self.scales or self.vectorised else None, 0)
            try:
                known = self.describe(env, seed)
                self._apply(known)
                if measure:
                    known.step_seconds = self.step_seconds = self._measure_step(env, seed)
            except EnvFailure as fault:
                first = EnvFailure(fault.what, fault.text, fault.index or 0, fault.hint)
                raise first.report(self.name, 0, seed) from fault
            finally:
                report_unclosed(self.name, close_if_possible(env))
        if key:
            _PROBES[key] = self._identity(), known
            if len(_PROBES) > _CACHED_PROBES:
                del _PROBES[next(iter(_PROBES))]

    def forget_probe(self) -> None:
        """Remove the probe from the cache, after the environment has changed."""
        _PROBES.pop(self._key(), None)

    def is_probed(self) -> bool:
        """Return True if the cache has a probe."""
        return self._key() in _PROBES

    def _key(self) -> Any:
        """Return the key of the cache, or None for keywords that contain mutable objects."""
        if not _is_plain(self.keywords):
            return None
        arguments = repr(sorted(self.keywords.items())), self.render, self.vectorised
        return type(self), self.name, id(self._identity()), *arguments

    def _identity(self) -> Any:
        """Return the object that identifies the constructor."""
        return self.constructor

    def layout_of(self, observation: Any, action: Any, masked: bool = False) -> SpaceLayout:
        """Return the layout of rows for the spaces of one agent."""
        return SpaceLayout(self.name, observation, action, masked, self.rescale, self.channels)

    def _apply(self, probe: Probe) -> None:
        self.agents = probe.agents
        self.environments = probe.environments
        self.step_seconds = probe.step_seconds
        self.layout = self.layout_of(*probe.spaces, probe.masked)

    def _measure_step(self, env: Any, seed: int) -> float:
        """Return the seconds that a step takes with random legal actions, resets included."""
        buffers = Buffers.allocate(self.shapes(self.agents))
        instance = self.as_instance(env, buffers)
        legal = buffers.legal if buffers.legal.size else None
        rng = np.random.default_rng(0)
        means = []
        try:
            instance.reset(seed)
            for _ in range(2):  # another program may be busy during one of them
                began = time.perf_counter()
                steps = 0
                busy = 0.0
                while steps < _MEASURED_STEPS and (
                    steps == 0 or time.perf_counter() - began < _MEASURED_SECONDS
                ):
                    chosen = random_actions(self.layout, self.agents, rng, legal)
                    started = time.perf_counter()
                    instance.step(self.actions(chosen))
                    busy += time.perf_counter() - started
                    steps += 1
                means.append(busy / steps)
        except ENV_EXCEPTIONS as error:
            raise locate_failure("failed in step", error, 0) from error
        return min(means)

    # ---- arrays and arguments --------------------------------------------------------------------

    def shapes(self, n: int) -> BufferShapes:
        """Return the shape and dtype of each array of the buffers of n agents."""
        spec = self.layout.spec
        observations = (n, spec.observation_size), self.layout.exact_dtype
        flags = (n,), np.bool_
        shapes: BufferShapes = {
            "observations": observations,
            "actions": ((n, spec.action.heads), np.float32),
            "rewards": ((n,), self.reward_dtype),
            "terminals": flags,
            "truncations": flags,
            "present": flags,
        }
        if spec.mask_size:
            shapes["legal"] = (n, spec.mask_size), np.uint8
        if self.reports_final_observations:
            shapes["last"] = observations
        return shapes

    def actions(self, rows: np.ndarray) -> Any:
        """Return (n, heads) actions of a policy as instances take them, indexable by agents."""
        return self.layout.each_action(rows)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**self.keywords, "render_mode": "rgb_array"} if self.render else self.keywords

    def argument_names(self) -> list[str]:
        """Return the names of the constructor's arguments, for messages."""
        return named_parameters(self.constructor)

    @contextmanager
    def reporting_failures(self, number: int | None = None, seed: int = 0) -> Iterator[None]:
        """Report what goes wrong while instance ``number`` is made.

        Args:
            number: Number of the instance.
            seed: Seed of instance 0.

        Raises:
            UserError: In place of the environment's error.
        """
        try:
            yield
        except UserError:
            raise
        except ModuleNotFoundError as error:
            raise UserError(f"{self.name}: {error}", to_install(error)) from None
        except ENV_EXCEPTIONS as error:
            if hint := drawing_hint(error):
                raise UserError(f"{self.name} can't be drawn: {error}", hint) from None
            word = _KEYWORD.search(str(error)) if isinstance(error, TypeError) else None
            if word and word[1] in self.arguments():
                raise self.unknown_argument(word[1]) from None
            fault = EnvFailure("failed when it was made", describe_exception(error), number)
            raise fault.report(self.name, 0, seed) from error

    def unknown_argument(self, key: str) -> UserError:
        """Return the error for an argument that the constructor doesn't take."""
        if key == "render_mode" and key not in self.keywords:
            return UserError(f"{self.name}: it can't be drawn: it takes no render_mode", DRAWS)
        names = ", ".join(self.argument_names())
        hint = f"it takes {names}" if names else "leave it out"
        return UserError(f"{self.name}: it takes no env.{key}", hint)


def _is_plain(value: Any) -> bool:
    """Return True if a value consists of numbers, texts, lists and dictionaries."""
    if isinstance(value, dict):
        return all(_is_plain(each) for each in [*value, *value.values()])
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def parameters(constructor: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function or class; {} if they can't be found."""
    try:
        return inspect.signature(constructor).parameters
    except (TypeError, ValueError):  # built in, or not callable
        return {}


def named_parameters(constructor: Any) -> list[str]:
    """Return the names of the parameters that can be given by name."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [name for name, each in parameters(constructor).items() if each.kind in kinds]


class OtherKind(UserError):
    """Error for a constructor that made an object of another class than expected."""


def other_kind(name: str, env: Any, expected: str, hint: str) -> OtherKind:
    """Return the error for an object of another class than expected."""
    kind = f"{type(env).__module__}.{type(env).__qualname__}"
    return OtherKind(f"{name}: it made a {kind}, expected a {expected}", hint)


def close_if_possible(env: Any) -> str:
    """Close an object that may be an environment. Returns what ``close`` raised, "" if nothing."""
    try:
        if callable(close := getattr(env, "close", None)):
            close()
    except ENV_EXCEPTIONS as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def report_unclosed(name: str, fault: str) -> None:
    """Print a line about an environment that couldn't be closed; each line once.

    Args:
        name: Name of the environments.
        fault: Result of ``close_if_possible``; nothing is printed for "".
    """
    line = f"puffer_mlx: {name}: close() of an environment failed, which is ignored: {fault}"
    if fault and line not in _printed_lines:
        _printed_lines.add(line)
        print(line, file=sys.stderr)


class Instances:
    """Instances that step one after another, each with an equal part of a group's n agents.

    Args:
        factory: Makes the instances.
        buffers: Arrays of the n agents.
        current: (1,) int: receives the index of the running instance, for a process that dies.
        busy: (1,) float64: receives the seconds spent in steps.
        count: Number of instances.
        num_envs: Environments in each instance: see ``EnvFactory.make``.
        seed: Seed of instance 0 of all groups.
        number: Number of the first instance of this group.

    Raises:
        UserError: An instance can't be made, or has another number of agents than expected.
    """

    def __init__(
        self,
        factory: EnvFactory,
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
        self._factory = factory
        self._current = current
        self._busy = busy
        self._seed = seed
        self._number = number
        self._seconds = 0.0
        n = len(buffers.rewards) // count
        self._instances: list[tuple[int, Instance, slice]] = []  # index, instance, its agents
        buffers.present[:] = True
        buffers.legal[:] = 1
        try:
            for i in range(count):
                current[0] = i
                agents = slice(i * n, (i + 1) * n)
                one = factory.make(seed + number + i, num_envs, buffers.select(agents), number + i)
                self._instances.append((i, one, agents))
                if one.num_agents != n:
                    wanted = "" if num_envs is None else f" with num_envs={num_envs}"
                    raise UserError(
                        f"{factory.name}: made{wanted} it has {one.num_agents} agents, expected"
                        f" {n}",
                        "all instances must have the same number, in proportion to num_envs",
                    )
        except BaseException:
            self.close_all()
            raise

    def reset(self, seed: int | None) -> list[EpisodeInfo]:
        """Reset all instances.

        Args:
            seed: Seed of instance 0 of all groups, instance i has ``seed + i``; None: no new seeds.

        Raises:
            EnvFailure: An instance failed.
        """
        for i, one, _ in self._instances:
            self._current[0] = i
            try:
                one.reset(None if seed is None else seed + self._number + i)
            except ENV_EXCEPTIONS as error:
                raise locate_failure("failed in reset", error, i) from error
        return []

    def step(self) -> list[EpisodeInfo]:
        """Step all instances with the actions in the buffers. Returns what they reported.

        Raises:
            EnvFailure: An instance failed.
        """
        began = time.perf_counter()
        infos: list[EpisodeInfo] = []
        current = self._current
        actions = self._factory.actions(self.buffers.actions)
        for i, one, agents in self._instances:
            current[0] = i
            try:
                news = one.step(actions[agents])
            except ENV_EXCEPTIONS as error:
                raise locate_failure("failed in step", error, i) from error
            if news:
                infos += [info.shifted(agents.start) for info in news]
        self._seconds += time.perf_counter() - began
        self._busy[0] = self._seconds
        return infos

    def picture(self) -> Any:
        """Return the first instance's picture, or the ``UserError`` with the reason.

        Raises:
            EnvFailure: The instance failed.
        """
        try:
            return self._instances[0][1].render()
        except UserError as error:
            return error
        except ENV_EXCEPTIONS as error:
            raise locate_failure("failed in render", error, 0) from error

    def close_all(self) -> str:
        """Close all instances. Returns what the first failing ``close`` raised, "" if none did."""
        turns = self._instances
        self._instances = []
        faults = [close_if_possible(one) for _, one, _ in turns]
        return next(filter(None, faults), "")


def locate_failure(what: str, error: BaseException, index: int) -> Exception:
    """Return an instance's failure as an ``EnvFailure`` with its index, or an unchanged ``UserError``."""
    if isinstance(error, UserError):
        return error
    fault = error if isinstance(error, EnvFailure) else failure_of(what, error)
    index = index if fault.index is None else fault.index
    return EnvFailure(fault.what or what, fault.text, index, fault.hint)
