"""Make Gymnasium's environments from an id or a function, single or vectorised."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.config.finding import gymnasium_id
from puffer_mlx.config.memory_needs import refuse_large_observations
from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import SUCCESSOR, add_to_path
from puffer_mlx.vec.env_failures import UNKNOWN_INDEX, as_info, raising_failure, result_failure
from puffer_mlx.vec.gym import wrapping
from puffer_mlx.vec.gym.agents import MASK_KEY, GymInstance, VectorInstance
from puffer_mlx.vec.gym.installed import (
    gymnasium,
    has_vectorised_versions,
    missing_package,
    require_newer,
    suppress_warnings,
)
from puffer_mlx.vec.instances import (
    Buffers,
    EnvFactory,
    Probe,
    close_if_possible,
    named_parameters,
    parameters,
    wrong_env_class,
)
from puffer_mlx.vec.registries import LazyConstructor, portable_specification


@dataclass
class GymFactory(EnvFactory):
    """Factory of instances of a Gymnasium environment.

    The constructor is a Gymnasium id, or a function that returns a ``gymnasium.Env`` or, if it
    takes ``num_envs``, a ``gymnasium.vector.VectorEnv``.

    Args:
        final_observations: True to give an episode's last observation a separate row (``VecEnv``)
            if the environment allows it.
        wrap: Section [wrap]: Gymnasium's wrappers around each environment.
        total: Number of environments that will be made, to check the memory of their observations.

    Attributes:
        specification: Gymnasium's specification of an id; None for a function.
    """

    final_observations: bool = False
    wrap: Wrap = field(default_factory=Wrap)
    total: int = 1
    specification: Any = field(default=None, init=False)
    by_environment = True
    reseeds = False
    reward_dtype = np.float64  # as in Gymnasium: scores are sums of rewards

    def __post_init__(self) -> None:
        gymnasium()
        # The requested value: _apply sets final_observations to what the environment does.
        self._final_observations_wanted = self.final_observations
        if isinstance(self.constructor, str):
            self._check_wrappers()
            with self.reporting_failures():
                self.specification = _specification(self.constructor)
            if self.specification.namespace == "ALE":
                self.wrap, self.keywords, self.unused = wrapping.split_atari_wrappers(
                    self.name, self.wrap, self.keywords
                )
            if self.wrap.max_episode_steps:  # counted outside of the other wrappers
                if "max_episode_steps" in self.keywords:
                    both = "env.max_episode_steps and wrap.max_episode_steps are both given"
                    raise UserError(f"{self.name}: {both}", "leave one of them out")
                self.keywords = {**self.keywords, "max_episode_steps": -1}

    def open(self, seed: int, count: int | None, number: int) -> Any:
        """Return a new Gymnasium environment, or a ``VectorEnv`` of ``count`` environments."""
        if self.vectorised:
            return self.vector(count or 1)
        return self.single(number, seed - number)  # environment i has seed + i

    def spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return one agent's observation space and action space in a Gymnasium environment."""
        if self.vectorised:
            return env.single_observation_space, env.single_action_space
        return env.observation_space, env.action_space

    def describe(self, env: Any, seed: int) -> Probe:
        """Return a new Gymnasium environment's spaces, and whether it reports action masks.

        Raises:
            EnvFailure: The environment failed.
        """
        index = UNKNOWN_INDEX if self.vectorised else None
        next_step = _begins_in_next_step(self.name, env) if self.vectorised else True
        spaces = self.spaces_of(env)
        self.layout_of(*spaces)  # refuse spaces before the environment is reset
        with raising_failure("failed in reset", index):
            result = self.first_reset(env, seed)
        if failure := result_failure("reset", result, index):
            raise failure
        masked = MASK_KEY in as_info(result[1], index)
        return Probe(spaces, masked=masked, next_step=next_step)

    def first_reset(self, env: Any, seed: int) -> Any:
        """Reset a new Gymnasium environment. Returns the observation and info of its ``reset``."""
        return env.reset(seed=seed)

    def as_instance(self, env: Any, buffers: Buffers) -> GymInstance | VectorInstance:
        """Wrap a Gymnasium environment as an instance that writes its agents' rows into buffers."""
        kind = VectorInstance if self.vectorised else GymInstance
        return kind(self.name, env, buffers, self.layout, self.final_observations)

    def actions(self, rows: np.ndarray) -> Any:
        """Convert a policy's actions for the environments: to an array or, unvectorised, a list."""
        return self.layout.actions(rows) if self.vectorised else self.layout.each_action(rows)

    def _key(self) -> Any:
        key = super()._key()
        return None if key is None else (*key, astuple(self.wrap), self.channels)

    def _identity(self) -> Any:
        return self.constructor if self.specification is None else self.specification

    def _apply(self, probe: Probe) -> None:
        super()._apply(probe)
        self.final_observations = (
            probe.next_step if self.vectorised else self._final_observations_wanted
        )
        self.reports_final_observations = (
            self._final_observations_wanted and not self.final_observations
        )

    def single(self, number: int | None = None, seed: int = 0) -> Any:
        """Make one ``gymnasium.Env`` with its wrappers.

        Args:
            number: Number of the environment, for messages.
            seed: Seed of environment 0, for messages.

        Raises:
            UserError: The environment can't be made.
        """
        with self.reporting_failures(number, seed):
            if isinstance(self.constructor, str):
                arguments = {"disable_env_checker": True, **self.arguments()}
                env = wrapping.make(self.specification, **arguments)
            else:
                env = self.constructor(**self.arguments())
            gym = gymnasium()  # in Gymnasium 0.29 VectorEnv is a subclass of Env
            if isinstance(env, gym.Env) and not isinstance(env, gym.vector.VectorEnv):
                self._check_wrappers()
                self._refuse_spaces(env)
                return wrapping.apply_wrappers(self.name, env, self.wrap, self.channels)
        close_if_possible(env)
        hint = "a function that makes a gymnasium.vector.VectorEnv must take num_envs"
        if callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None)):
            packages = {kind.__module__.partition(".")[0] for kind in type(env).__mro__}
            hint = SUCCESSOR if "gym" in packages else "derive it from gymnasium.Env"
        raise wrong_env_class(self.name, env, "gymnasium.Env", hint)

    def _check_wrappers(self) -> None:
        """Raise an error for requested wrappers that the installed Gymnasium lacks."""
        for key in wrapping.changed_keys(self.wrap):
            require_newer(f"{self.name}: wrap.{key}")

    def vector(self, num_envs: int) -> Any:
        """Make a Gymnasium environment's vectorised version, a ``gymnasium.vector.VectorEnv``.

        Raises:
            UserError: The version can't be made, or has an unexpected class or size.
        """
        with self.reporting_failures():
            if isinstance(self.constructor, str):
                env = gymnasium().make_vec(
                    self.specification,
                    num_envs=num_envs,
                    vectorization_mode="vector_entry_point",
                    **self.arguments(),
                )
            else:
                env = self.constructor(num_envs=num_envs, **self.arguments())
        size = getattr(env, "num_envs", None)
        if isinstance(env, gymnasium().vector.VectorEnv) and size == num_envs:
            return env
        raise UserError(
            f"{self.name}: with num_envs={num_envs} its constructor made a {type(env).__qualname__}"
            + (f" of {size}" if size is not None else ""),
            "for num_envs=n return a gymnasium.vector.VectorEnv of n environments",
        )

    def vectorised_version(self) -> tuple[str, str]:
        """Describe the environment's vectorised version, or return a reason not to use it.

        Returns (description, "") if the version can be used, else ("", reason).
        """
        if not has_vectorised_versions():
            version = gymnasium().__version__
            return "", f"Gymnasium {version} has no vectorised versions that report episode ends"
        constructor: Any = self.constructor
        if isinstance(constructor, str):
            specification = self.specification
            if specification.vector_entry_point is None:
                return "", f"{specification.id} has no vectorised version"
            if specification.additional_wrappers:
                return "", "its vectorised version can't be wrapped"
            with self.reporting_failures():
                constructor = _load_entry_point(specification.vector_entry_point)
        accepted = parameters(constructor)
        if "num_envs" not in accepted and not isinstance(self.constructor, str):
            return "", "it doesn't take num_envs"
        if keys := wrapping.changed_keys(self.wrap):
            return "", f"its vectorised version can't be wrapped (wrap.{', wrap.'.join(keys)})"
        if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            for key in self.arguments():
                if key not in accepted:
                    return "", f"its vectorised version takes no {key!r}"
        name = getattr(constructor, "__name__", type(constructor).__name__)
        return f"{name}, its vectorised version", ""

    def argument_names(self) -> list[str]:
        """Return the names of the arguments that the environment's constructor takes."""
        if not isinstance(self.constructor, str):
            return super().argument_names()
        return named_parameters(_load_entry_point(self.specification.entry_point))

    @contextmanager
    def reporting_failures(self, number: int | None = None, seed: int = 0) -> Iterator[None]:
        """Context manager: convert exceptions while an environment is made to ``UserError``."""
        errors = gymnasium().error
        with super().reporting_failures(number, seed):
            try:
                with suppress_warnings():
                    yield
            except errors.DependencyNotInstalled as error:
                package = missing_package(f"gym:{self.constructor}")
                hint = f"pip install '{package}'" if package else "install what is missing"
                text = str(error).partition(", ")[0] if package else str(error)
                raise UserError(f"{self.name}: {text}", hint) from None
            except errors.Error as error:  # no such environment, or an outdated one
                raise UserError(
                    f"{self.name}: {error}", _missing_id_hint(str(self.constructor))
                ) from None

    def _refuse_spaces(self, env: Any) -> None:
        """Raise an error for an environment without spaces, or with too large observations.

        Gymnasium would allocate an array of all observations before other checks.
        """
        for name in "observation_space", "action_space":
            if not isinstance(getattr(env, name, None), gymnasium().Space):
                hint = f"set self.{name} to one of gymnasium.spaces when it is made"
                raise UserError(f"{self.name}: it has no {name}", hint)
        refuse_large_observations(self.name, env.observation_space, self.total)

    def __getstate__(self) -> dict[str, Any]:
        """Return this factory's state for pickle; its constructor can be unpickled elsewhere."""
        state = dict(self.__dict__)
        if self.specification is None:
            return {**state, "constructor": LazyConstructor(self.constructor)}
        return {**state, "specification": portable_specification(self.specification)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if str(getattr(self.specification, "entry_point", "")).startswith("ale_py"):
            _silence_ale()


def _specification(name: str) -> Any:
    """Look up Gymnasium's specification of an environment id.

    The id may begin with a module to import, also from the working directory (MODULE:ID).
    """
    from gymnasium.envs import registration

    gym = gymnasium()
    module, _, name = name.rpartition(":")
    if module:
        if module not in sys.modules:
            add_to_path(Path.cwd())
        importlib.import_module(module)
    elif name.startswith("MiniGrid-") and importlib.util.find_spec("minigrid"):
        importlib.import_module("minigrid")
    elif name not in gym.registry and importlib.util.find_spec("ale_py"):
        if name.startswith("ALE/"):
            require_newer(name)
        gym.register_envs(_silence_ale())
    namespace, base, version = registration.parse_env_id(name)
    if version is None and name not in gym.registry:
        newest = registration.find_highest_version(namespace, base)
        name = registration.get_env_id(namespace, base, newest)
    return gym.spec(name)


def _silence_ale() -> Any:
    """Import Atari's package ale_py without the greeting that it prints. Returns the module."""
    ale = importlib.import_module("ale_py")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    return ale


def declared_fps(constructor: Any) -> float | None:
    """Return the frames per second that an environment declares (``render_fps``), or None.

    Args:
        constructor: Gymnasium id, class or function.
    """
    fps = declared_metadata(constructor).get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else None


def declared_metadata(constructor: Any) -> dict[str, Any]:
    """Return the ``metadata`` of an environment's class, without making the environment, or {}.

    Args:
        constructor: Gymnasium id, class or function.
    """
    if isinstance(constructor, str):
        constructor = _load_entry_point(_specification(constructor).entry_point)
    metadata = getattr(constructor, "metadata", None)
    return metadata if isinstance(metadata, dict) else {}


def _load_entry_point(entry_point: Any) -> Any:
    """Return the function or class of a Gymnasium entry point, imported if it is given by name."""
    from gymnasium.envs.registration import load_env_creator

    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _begins_in_next_step(name: str, vector: Any) -> bool:
    """Return True if a vector environment resets itself in the step after an episode's last one.

    False: in the same step, which replaces the last observation by the first one.

    Raises:
        UserError: The environment's metadata declare neither.
    """
    autoreset = vector.metadata.get("autoreset_mode")
    mode = getattr(autoreset, "value", autoreset)
    if mode in ("NextStep", "SameStep"):
        return mode == "NextStep"
    raise UserError(
        f'{name}: its metadata["autoreset_mode"] is {autoreset}, expected NEXT_STEP or SAME_STEP',
        "begin the next episode automatically: gymnasium.vector.AutoresetMode.NEXT_STEP",
    )


def _missing_id_hint(env_id: str) -> str:
    """Return a hint on a Gymnasium id that isn't registered: a similar id, or a package."""
    name = f"gym:{env_id}"
    near = gymnasium_id(env_id)
    other_version = near != name and near.rpartition("-v")[0] == name.rpartition("-v")[0]
    if other_version:
        return near
    if package := missing_package(name):
        return f"pip install '{package}'"
    if ":" in env_id:
        return "does importing that module register it?"
    if near not in ("", name):
        return f"did you mean {near}?"
    return f"if a package registers it, name that too: gym:PACKAGE:{env_id}"


def constructor_of(env: Any) -> Callable[..., Any]:
    """Return a constructor that returns one existing environment each time, not a new one.

    The constructor raises an error while the environment is in use.

    Args:
        env: A ``gymnasium.Env``. It is never closed.
    """
    name = type(env.unwrapped).__name__
    in_use: list[Any] = []

    class Reusable(gymnasium().Wrapper):
        """Wrapper whose ``close`` makes the environment available again instead of closing it."""

        def close(self) -> None:
            if self in in_use:
                in_use.remove(self)

    def make(render_mode: str | None = None) -> Any:
        if in_use:
            constructor = f'"gym:{env.spec.id}"' if env.spec else f"{name}, or lambda: {name}(…)"
            raise UserError(
                f"{name} is one environment object, and the run needs several environments",
                f"pass its constructor: {constructor}; or use one environment: total_agents=1",
            )
        if render_mode is not None and env.render_mode != render_mode:
            raise UserError(
                f"{name} can't be drawn: its render_mode is {env.render_mode}",
                f'make it with render_mode="{render_mode}"',
            )
        in_use.append(Reusable(env))
        return in_use[0]

    return make
