"""Make and step Python environments: factories, arrays of their agents, and step loops."""

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
from puffer_mlx.system.import_string import install_hint
from puffer_mlx.vec.env_failures import (
    ENV_EXCEPTIONS,
    EnvFailure,
    describe_exception,
    failure_of,
    rendering_hint,
)
from puffer_mlx.vec.layout import SpaceLayout
from puffer_mlx.vec.rows import random_actions
from puffer_mlx.vec.spaces import CHANNELS_SMALLEST

RENDER_HINT = 'take a render_mode, and return pictures from render() if it is "rgb_array"'
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")
_MEASURED_SECONDS = 0.05  # maximum duration of each of two measurements of a step
_MEASURED_STEPS = 100  # maximum steps of a measurement
_MAX_CACHED_PROBES = 32

# Name of an array of ``Buffers`` -> its shape and dtype.
BufferShapes = dict[str, tuple[tuple[int, ...], Any]]
_EMPTY_ARRAY = np.zeros(0)
_printed_lines: set[str] = set()  # lines that `report_unclosed` printed


class Buffers(NamedTuple):
    """Arrays through which n agents exchange actions and observations with their environments."""

    observations: np.ndarray  # (n, D), dtype ``SpaceLayout.exact_dtype``
    actions: np.ndarray  # (n, heads) float32
    rewards: np.ndarray  # (n,) float32; float64 for Gymnasium's environments
    terminals: np.ndarray  # (n,) bool
    truncations: np.ndarray  # (n,) bool
    present: np.ndarray  # (n,) bool, False for absent agents
    last: np.ndarray = _EMPTY_ARRAY  # (n, D), last observations reported separately
    legal: np.ndarray = _EMPTY_ARRAY  # (n, logits) uint8, legal actions if they are masked

    def select(self, agents: slice) -> "Buffers":
        """Return ``Buffers`` that view a slice of the agents, without a copy."""
        return Buffers(*(array[agents] for array in self))

    @staticmethod
    def allocate(shapes: BufferShapes) -> "Buffers":
        """Allocate ``Buffers`` of zeros with the given shapes in this process's memory."""
        return Buffers(**{key: np.zeros(*kind) for key, kind in shapes.items()})


class EpisodeInfo(NamedTuple):
    """Metrics that an environment reported for one episode, or for several."""

    agent: int  # index of the agent whose episode ended; -1 for several episodes
    metrics: dict[str, float]

    def shifted(self, first: int) -> "EpisodeInfo":
        """Return a copy of this episode's report with its agent's index increased by ``first``."""
        return self._replace(agent=first + self.agent) if self.agent >= 0 else self


class Instance(Protocol):
    """An object that steps one or several Python environments and fills the agents' ``Buffers``."""

    num_agents: int

    def reset(self, seed: int | None = None) -> None:
        """Start new episodes in all Python environments of this instance."""
        ...

    def step(self, actions: Any) -> Sequence[EpisodeInfo]:
        """Step the Python environments of this instance. Returns reports of ended episodes.

        Args:
            actions: Actions of this instance's agents, from ``EnvFactory.actions``.
        """
        ...

    def render(self) -> Any:
        """Return a picture of this instance's environment, or True if it draws in its own window.

        Raises:
            UserError: The environment can't be drawn.
        """
        ...

    def close(self) -> None:
        """Close the Python environments of this instance."""
        ...


@dataclass
class Probe:
    """Properties of a Python environment, such as its spaces, read from a first instance.

    Args:
        spaces: Observation and action space of one agent.
        agents: Number of agents of one instance.
        environments: Number of environments of one instance, which share its agents.
        masked: True if the environment reports legal actions.
        next_step: True if a vectorised environment begins an episode in the step after the last
            one, False if in the same step.
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


_PROBES: dict[Any, tuple[Any, Probe]] = {}  # `EnvFactory._key` -> (constructor, probe)


@dataclass
class EnvFactory:
    """Base class of factories that make instances of a Python environment; one per library.

    A subclass implements ``open``, ``spaces_of``, ``describe`` and ``as_instance``. Factories can
    be pickled by cloudpickle.

    Args:
        name: Name of the environment, for messages.
        constructor: Class or function that returns an environment.
        keywords: Arguments of the constructor.
        render: Make environments that can draw pictures.
        rescale: Map -1 to 1 of a continuous action to its bounds.
        channels: ``vec.image_channels``.

    Attributes:
        agents: Agents of one instance, after ``probe``; also ``environments`` and ``layout``.
        final_observations: True if an episode's last observation has a separate row (``VecEnv``).
        reports_final_observations: True if last observations are reported beside the rows.
        unused: Keywords without effect, each with the reason.
        vectorised: True if instances are vectorised environments.
        from_cache: True if the probe came from the cache.
        by_environment: True if seeds and processes are counted by environment, False by instance.
        reseeds: True if every reset of all environments uses new seeds, False if only the first.
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
    final_observations: bool = True
    reports_final_observations: bool = field(default=False, init=False)
    unused: list[str] = field(default_factory=list, init=False)
    vectorised: bool = field(default=False, init=False)
    from_cache: bool = field(default=False, init=False)
    by_environment: ClassVar[bool] = False
    reseeds: ClassVar[bool] = True
    reward_dtype: ClassVar[Any] = np.float32

    # ---- the protocol ----------------------------------------------------------------------------

    def make(self, seed: int, count: int | None, buffers: Buffers, number: int) -> Instance:
        """Make an instance of the Python environment whose agents write into ``buffers``.

        Args:
            seed: Seed of its random generator.
            count: Number of environments in the instance; None for the fixed number.
            buffers: Arrays of its agents.
            number: Index of the instance, for messages.

        Raises:
            UserError: The environment can't be made, or its spaces differ from the probed ones.
        """
        env = self.open(seed, count, number)
        spaces = zip(self.spaces_of(env), self.layout.spaces, strict=True)
        for what, (space, first) in zip(("observation", "action"), spaces, strict=True):
            if space != first:
                close_if_possible(env)
                text = f"its {what} space is {space}, but environment 0 has {first}"
                failure = EnvFailure("failed when it was made", text, number)
                raise failure.report(self.name, 0, seed - number)
        return self.as_instance(env, buffers)

    def open(self, seed: int, count: int | None, number: int) -> Any:
        """Make a new environment of the library and return it, not wrapped as an instance."""
        raise NotImplementedError

    def spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return one agent's observation space and action space in a new environment."""
        raise NotImplementedError

    def describe(self, env: Any, seed: int) -> Probe:
        """Return the properties (``Probe``) of a new environment, such as its spaces."""
        raise NotImplementedError

    def as_instance(self, env: Any, buffers: Buffers) -> Instance:
        """Wrap an environment of the library as an instance that writes into ``buffers``."""
        raise NotImplementedError

    @property
    def scales(self) -> bool:
        """True if one instance of this factory can contain any number of environments."""
        return False

    def vectorised_version(self) -> tuple[str, str]:
        """Describe the environment's vectorised version, or return a reason not to use it.

        Returns (description, "") if the version can be used, else ("", reason).
        """
        return "", "it takes no num_envs"

    # ---- properties of the environment -----------------------------------------------------------

    def probe(self, backend: str = "sync", seed: int = 0, measure: bool = False) -> None:
        """Probe the environment: read its agents, spaces and action masks from a first instance.

        Properties of an environment that was probed before come from a cache.

        Args:
            backend: ``vec.backend``; with ``auto`` and ``vector`` a vectorised version is probed.
            seed: Seed of the environment.
            measure: Measure the duration of a step, unless a vectorised version is used.

        Raises:
            UserError: The environment can't be made, fails, or has an unsupported space.
        """
        reason = self.vectorised_version()[1] if backend in ("auto", "vector") else "not requested"
        if backend == "vector" and reason:
            fixed = "num_envs" in self.keywords
            raise UserError(
                f"{self.name}: vec.backend is vector, but {reason}",
                "leave env.num_envs out" if fixed else "set vec.backend to sync or async",
            )
        self.vectorised = not reason
        measure = measure and not self.vectorised
        key = self._key()
        _, probe = _PROBES.get(key, (None, None)) if key else (None, None)
        if probe is not None and (probe.step_seconds is not None or not measure):
            self.from_cache = True
            self._apply(probe)
            return
        self.from_cache = False
        # Restores the working directory, which an environment may change.
        with contextlib.chdir("."):
            env = self.open(seed, 1 if self.scales or self.vectorised else None, 0)
            try:
                probe = self.describe(env, seed)
                self._apply(probe)
                if measure:
                    probe.step_seconds = self.step_seconds = self._measure_step(env, seed)
            except EnvFailure as failure:
                first = EnvFailure(failure.event, failure.text, failure.index or 0, failure.hint)
                raise first.report(self.name, 0, seed) from failure
            finally:
                report_unclosed(self.name, close_if_possible(env))
        if key:
            _PROBES[key] = self._identity(), probe
            if len(_PROBES) > _MAX_CACHED_PROBES:
                del _PROBES[next(iter(_PROBES))]

    def forget_probe(self) -> None:
        """Remove this environment's properties from the cache, after its code has changed."""
        _PROBES.pop(self._key(), None)

    def is_probed(self) -> bool:
        """Return True if this environment was probed before: its properties are in the cache."""
        return self._key() in _PROBES

    def _key(self) -> Any:
        """Return this environment's key in the cache of properties; None if it can't be cached.

        Keywords with other objects than numbers and texts can't.
        """
        if not _is_plain(self.keywords):
            return None
        arguments = repr(sorted(self.keywords.items())), self.render, self.vectorised
        return type(self), self.name, id(self._identity()), *arguments

    def _identity(self) -> Any:
        """Return the object that identifies the environment's constructor in a cache."""
        return self.constructor

    def layout_of(self, observation: Any, action: Any, masked: bool = False) -> SpaceLayout:
        """Return the ``SpaceLayout`` that converts these spaces to flat rows of numbers."""
        return SpaceLayout(self.name, observation, action, masked, self.rescale, self.channels)

    def _apply(self, probe: Probe) -> None:
        self.agents = probe.agents
        self.environments = probe.environments
        self.step_seconds = probe.step_seconds
        self.layout = self.layout_of(*probe.spaces, probe.masked)

    def _measure_step(self, env: Any, seed: int) -> float:
        """Measure how long a step of an environment takes with random legal actions, in seconds."""
        buffers = Buffers.allocate(self.shapes(self.agents))
        instance = self.as_instance(env, buffers)
        legal = buffers.legal if buffers.legal.size else None
        rng = np.random.default_rng(0)
        means = []
        try:
            instance.reset(seed)
            for _ in range(2):  # the minimum of two, since another program may be busy meanwhile
                began = time.perf_counter()
                steps = 0
                busy = 0.0
                while steps < _MEASURED_STEPS and (
                    steps == 0 or time.perf_counter() - began < _MEASURED_SECONDS
                ):
                    sampled_actions = random_actions(self.layout, self.agents, rng, legal)
                    started = time.perf_counter()
                    instance.step(self.actions(sampled_actions))
                    busy += time.perf_counter() - started
                    steps += 1
                means.append(busy / steps)
        except ENV_EXCEPTIONS as error:
            raise locate_failure("failed in step", error, 0) from error
        return min(means)

    # ---- arrays and arguments --------------------------------------------------------------------

    def shapes(self, n: int) -> BufferShapes:
        """Return the shape and dtype of each array in ``Buffers`` for n agents, by name."""
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
        """Convert a policy's actions, (n, heads) float32, to the actions that instances take."""
        return self.layout.each_action(rows)

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments with which to call the environment's constructor."""
        return {**self.keywords, "render_mode": "rgb_array"} if self.render else self.keywords

    def argument_names(self) -> list[str]:
        """Return the names of the arguments that the environment's constructor takes."""
        return named_parameters(self.constructor)

    @contextmanager
    def reporting_failures(self, number: int | None = None, seed: int = 0) -> Iterator[None]:
        """Context manager: convert exceptions while an environment is made to ``UserError``.

        Args:
            number: Number of the instance.
            seed: Seed of instance 0.

        Raises:
            UserError: Replaces the environment's exception.
        """
        try:
            yield
        except UserError:
            raise
        except ModuleNotFoundError as error:
            raise UserError(f"{self.name}: {error}", install_hint(error)) from None
        except ENV_EXCEPTIONS as error:
            if hint := rendering_hint(error):
                raise UserError(f"{self.name} can't be drawn: {error}", hint) from None
            word = _KEYWORD.search(str(error)) if isinstance(error, TypeError) else None
            if word and word[1] in self.arguments():
                raise self.unknown_argument(word[1]) from None
            failure = EnvFailure("failed when it was made", describe_exception(error), number)
            raise failure.report(self.name, 0, seed) from error

    def unknown_argument(self, key: str) -> UserError:
        """Return the error for a user's argument that the environment's constructor lacks."""
        if key == "render_mode" and key not in self.keywords:
            return UserError(
                f"{self.name}: it can't be drawn: it takes no render_mode", RENDER_HINT
            )
        names = ", ".join(self.argument_names())
        hint = f"it takes {names}" if names else "leave it out"
        return UserError(f"{self.name}: it takes no env.{key}", hint)


def _is_plain(value: Any) -> bool:
    """Return True if a value consists only of numbers, texts, lists and dicts (can be cached)."""
    if isinstance(value, dict):
        return all(_is_plain(each) for each in [*value, *value.values()])
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def parameters(constructor: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function or class by name; {} if Python can't inspect it."""
    try:
        return inspect.signature(constructor).parameters
    except (TypeError, ValueError):  # built in, or not callable
        return {}


def named_parameters(constructor: Any) -> list[str]:
    """Return the names of a function's or class's parameters that can be passed by keyword."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [name for name, each in parameters(constructor).items() if each.kind in kinds]


class WrongEnvClass(UserError):
    """Error for a constructor that returned an object of another class than an environment's."""


def wrong_env_class(name: str, env: Any, expected: str, hint: str) -> WrongEnvClass:
    """Return a ``WrongEnvClass`` error that names the unexpected class of an environment."""
    kind = f"{type(env).__module__}.{type(env).__qualname__}"
    return WrongEnvClass(f"{name}: it made a {kind}, expected a {expected}", hint)


def close_if_possible(env: Any) -> str:
    """Close an environment, if it has ``close``. Returns the text of its exception, or ""."""
    try:
        if callable(close := getattr(env, "close", None)):
            close()
    except ENV_EXCEPTIONS as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def report_unclosed(name: str, failure: str) -> None:
    """Print a warning once that ``close`` of an environment failed.

    Args:
        name: Name of the environments.
        failure: Result of ``close_if_possible``. "" prints no warning.
    """
    line = f"puffer_mlx: {name}: close() of an environment failed, which is ignored: {failure}"
    if failure and line not in _printed_lines:
        _printed_lines.add(line)
        print(line, file=sys.stderr)


class Instances:
    """A group's instances of a Python environment, stepped one after another in this process.

    Each instance has the same number of a group's n agents.

    Args:
        factory: Makes the instances.
        buffers: Arrays of the n agents.
        current: (1,) int, set to the index of the running instance, for messages if it crashes.
        busy: (1,) float64, set to the seconds spent in steps.
        count: Number of instances.
        num_envs: Environments in each instance: see ``EnvFactory.make``.
        seed: Seed of instance 0 of all groups.
        number: Number of the first instance of this group.

    Raises:
        UserError: An instance can't be made, or has an unexpected number of agents.
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
                instance = factory.make(
                    seed + number + i, num_envs, buffers.select(agents), number + i
                )
                self._instances.append((i, instance, agents))
                if instance.num_agents != n:
                    made_with = "" if num_envs is None else f", made with num_envs={num_envs},"
                    raise UserError(
                        f"{factory.name}: an instance{made_with} has {instance.num_agents} agents,"
                        f" expected {n}",
                        "all instances must have the same number, in proportion to num_envs",
                    )
        except BaseException:
            self.close_all()
            raise

    def reset(self, seed: int | None) -> list[EpisodeInfo]:
        """Start new episodes in all instances of this group of Python environments.

        Args:
            seed: Seed of instance 0 of all groups; instance i gets ``seed + i``. None for no new
                seeds.

        Raises:
            EnvFailure: An instance failed.
        """
        for i, instance, _ in self._instances:
            self._current[0] = i
            try:
                instance.reset(None if seed is None else seed + self._number + i)
            except ENV_EXCEPTIONS as error:
                raise locate_failure("failed in reset", error, i) from error
        return []

    def step(self) -> list[EpisodeInfo]:
        """Step all instances of this group with buffered actions. Returns reports of episodes.

        Raises:
            EnvFailure: An instance failed.
        """
        began = time.perf_counter()
        infos: list[EpisodeInfo] = []
        current = self._current
        actions = self._factory.actions(self.buffers.actions)
        for i, instance, agents in self._instances:
            current[0] = i
            try:
                reports = instance.step(actions[agents])
            except ENV_EXCEPTIONS as error:
                raise locate_failure("failed in step", error, i) from error
            if reports:
                infos += [info.shifted(agents.start) for info in reports]
        self._seconds += time.perf_counter() - began
        self._busy[0] = self._seconds
        return infos

    def picture(self) -> Any:
        """Render the first instance's environment. Returns a picture, or a ``UserError``.

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
        """Close all instances of this group. Returns the text of the first exception, or ""."""
        instances = self._instances
        self._instances = []
        reasons = [close_if_possible(each) for _, each, _ in instances]
        return next(filter(None, reasons), "")


def locate_failure(event: str, error: BaseException, index: int) -> Exception:
    """Return an instance's exception as an ``EnvFailure`` that contains the instance's index.

    A ``UserError`` is returned unchanged.
    """
    if isinstance(error, UserError):
        return error
    failure = error if isinstance(error, EnvFailure) else failure_of(event, error)
    index = index if failure.index is None else failure.index
    return EnvFailure(failure.event or event, failure.text, index, failure.hint)
