"""The factory of Gymnasium's environments: by id or by a function, single or vectorised."""

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
from puffer_mlx.config.memory_needs import refuse_observations
from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import SUCCESSOR, add_to_path
from puffer_mlx.vec.gym import wrapping
from puffer_mlx.vec.gym.agents import MASK, GymInstance, VectorInstance
from puffer_mlx.vec.gym.installed import (
    gymnasium,
    has_own_vector_forms,
    missing_package,
    need_newer,
    quiet,
)
from puffer_mlx.vec.instances import (
    Buffers,
    EnvFactory,
    Probe,
    close_if_possible,
    named_parameters,
    other_kind,
    parameters,
)
from puffer_mlx.vec.python_faults import UNKNOWN, as_info, failing, form_fault
from puffer_mlx.vec.registries import Later, portable


@dataclass
class GymFactory(EnvFactory):
    """Makes Gymnasium's environments.

    The constructor is a Gymnasium id, or returns a ``gymnasium.Env`` or, given ``num_envs``, a
    ``gymnasium.vector.VectorEnv``.

    Args:
        finals: True if an episode's last observation shall have a separate row.
        wrap: Gymnasium's wrappers around each environment.
        total: Number of environments to be made, to check the memory of their observations.

    Attributes:
        specification: Gymnasium's specification of an id; None for another constructor.
    """

    finals: bool = False
    wrap: Wrap = field(default_factory=Wrap)
    total: int = 1
    specification: Any = field(default=None, init=False)
    by_environment = True
    reseeds = False
    reward_dtype = np.float64  # as in Gymnasium: scores are sums of rewards

    def __post_init__(self) -> None:
        gymnasium()
        self._finals_wanted = self.finals
        if isinstance(self.constructor, str):
            self._check_wrappers()
            with self.explained():
                self.specification = _specification(self.constructor)
            if self.specification.namespace == "ALE":
                self.wrap, self.keywords, self.unread = wrapping.of_game(
                    self.name, self.wrap, self.keywords
                )
            if self.wrap.max_episode_steps:  # counted outside of the other wrappers
                if "max_episode_steps" in self.keywords:
                    both = "env.max_episode_steps and wrap.max_episode_steps are both given"
                    raise UserError(f"{self.name}: {both}", "leave one of them out")
                self.keywords = {**self.keywords, "max_episode_steps": -1}

    def open(self, seed: int, count: int | None, number: int) -> Any:
        """Return a new environment, or a vectorised form of ``count``."""
        if self.vectorised:
            return self.vector(count or 1)
        return self.single(number, seed - number)

    def spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return the observation space and the action space of one agent."""
        if self.vectorised:
            return env.single_observation_space, env.single_action_space
        return env.observation_space, env.action_space

    def describe(self, env: Any, seed: int) -> Probe:
        """Return an environment's spaces, and whether it masks actions in its first reset.

        Raises:
            Fault: It failed.
        """
        index = UNKNOWN if self.vectorised else None
        next_step = _tells_finals(self.name, env) if self.vectorised else True
        spaces = self.spaces_of(env)
        self.layout_of(*spaces)  # refuse spaces before the environment is reset
        with failing("failed in reset", index):
            result = self.first_reset(env, seed)
        if fault := form_fault("reset", result, index):
            raise fault
        masked = MASK in as_info(result[1], index)
        return Probe(spaces, masked=masked, next_step=next_step)

    def first_reset(self, env: Any, seed: int) -> Any:
        """Reset a new environment. Returns its result."""
        return env.reset(seed=seed)

    def as_instance(self, env: Any, buffers: Buffers) -> GymInstance | VectorInstance:
        """Return the environment as an instance."""
        kind = VectorInstance if self.vectorised else GymInstance
        return kind(self.name, env, buffers, self.layout, self.finals)

    def actions(self, rows: np.ndarray) -> Any:
        """Return actions as instances take them: a vectorised form takes one array."""
        return self.layout.actions(rows) if self.vectorised else self.layout.each_action(rows)

    def _key(self) -> Any:
        key = super()._key()
        return key and (*key, astuple(self.wrap), self.channels)

    def _identity(self) -> Any:
        return self.constructor if self.specification is None else self.specification

    def _apply(self, probe: Probe) -> None:
        super()._apply(probe)
        self.finals = probe.next_step if self.vectorised else self._finals_wanted
        self.shows_last = self._finals_wanted and not self.finals

    def single(self, number: int | None = None, seed: int = 0) -> Any:
        """Return a new ``gymnasium.Env`` with its wrappers.

        Args:
            number: Number of the environment, for messages.
            seed: Seed of number 0, for messages.

        Raises:
            UserError: It can't be made.
        """
        with self.explained(number, seed):
            if isinstance(self.constructor, str):
                arguments = {"disable_env_checker": True, **self.arguments()}
                env = wrapping.make(self.specification, **arguments)
            else:
                env = self.constructor(**self.arguments())
            gym = gymnasium()  # VectorEnv is an Env, too, in 0.29
            if isinstance(env, gym.Env) and not isinstance(env, gym.vector.VectorEnv):
                self._check_wrappers()
                self._refuse_spaces(env)
                return wrapping.wrapped(self.name, env, self.wrap, self.channels)
        close_if_possible(env)
        hint = "a function that makes a gymnasium.vector.VectorEnv takes num_envs"
        if callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None)):
            old = any(kind.__module__.partition(".")[0] == "gym" for kind in type(env).__mro__)
            hint = SUCCESSOR if old else "derive it from gymnasium.Env"
        raise other_kind(self.name, env, "gymnasium.Env", hint)

    def _check_wrappers(self) -> None:
        """Refuse wrappers that the installed Gymnasium lacks."""
        for key in wrapping.changed(self.wrap):
            need_newer(f"{self.name}: wrap.{key}")

    def vector(self, num_envs: int) -> Any:
        """Return the environment's own vectorised form, a ``gymnasium.vector.VectorEnv``.

        Raises:
            UserError: It can't be made, or is of another kind.
        """
        with self.explained():
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
            f"{self.name}: asked for num_envs={num_envs}, it made a {type(env).__qualname__}"
            + (f" of {size}" if size is not None else ""),
            "with num_envs it must return a gymnasium.vector.VectorEnv of so many environments",
        )

    def vector_form(self) -> tuple[str, str]:
        """Return the vectorised form's name, and why it can't be used ("" if it can)."""
        if not has_own_vector_forms():
            return "", f"Gymnasium {gymnasium().__version__} has none that say when episodes begin"
        form: Any = self.constructor
        if isinstance(form, str):
            specification = self.specification
            if specification.vector_entry_point is None:
                return "", f"{specification.id} has no vectorised form of its own"
            if specification.additional_wrappers:
                return "", "its vectorised form can't be wrapped"
            with self.explained():
                form = _loaded(specification.vector_entry_point)
        known = parameters(form)
        if "num_envs" not in known and not isinstance(self.constructor, str):
            return "", "it doesn't take num_envs"
        if keys := wrapping.changed(self.wrap):
            return "", f"its vectorised form can't be wrapped (wrap.{', wrap.'.join(keys)})"
        if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            for key in self.arguments():
                if key not in known:
                    return "", f"its vectorised form takes no {key!r}"
        return f"{getattr(form, '__name__', type(form).__name__)}, its own vectorised form", ""

    def takes(self) -> list[str]:
        """Return the names of the arguments of the function or class that an id stands for."""
        if not isinstance(self.constructor, str):
            return super().takes()
        return named_parameters(_loaded(self.specification.entry_point))

    @contextmanager
    def explained(self, number: int | None = None, seed: int = 0) -> Iterator[None]:
        """Report what goes wrong as ``EnvFactory.explained``, and Gymnasium's own errors."""
        errors = gymnasium().error
        with super().explained(number, seed):
            try:
                with quiet():
                    yield
            except errors.DependencyNotInstalled as error:
                package = missing_package(f"gym:{self.constructor}")
                hint = f"pip install '{package}'" if package else "install what is missing"
                missing = str(error).partition(", ")[0] if package else error
                raise UserError(f"{self.name}: {missing}", hint) from None
            except errors.Error as error:  # no such environment, or an outdated one
                raise UserError(f"{self.name}: {error}", _where(str(self.constructor))) from None

    def _refuse_spaces(self, env: Any) -> None:
        """Refuse an environment without spaces, or with observations beyond this machine's memory.

        Gymnasium would allocate an array of all observations before the space is read here.
        """
        for name in "observation_space", "action_space":
            if not isinstance(getattr(env, name, None), gymnasium().Space):
                hint = f"set self.{name} to one of gymnasium.spaces when it is made"
                raise UserError(f"{self.name}: it has no {name}", hint)
        refuse_observations(self.name, env.observation_space, self.total)

    def __getstate__(self) -> dict[str, Any]:
        """Return the factory with what makes an environment, which is not looked up again."""
        state = dict(self.__dict__)
        if self.specification is None:
            return {**state, "constructor": Later(self.constructor)}
        return {**state, "specification": portable(self.specification)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if str(getattr(self.specification, "entry_point", "")).startswith("ale_py"):
            _silence_ale()


def _specification(name: str) -> Any:
    """Return the specification of an id, which may begin with a module to import (MODULE:ID).

    Modules of the working directory are found, too.
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
            need_newer(name)
        gym.register_envs(_silence_ale())
    namespace, base, version = registration.parse_env_id(name)
    if version is None and name not in gym.registry:
        newest = registration.find_highest_version(namespace, base)
        name = registration.get_env_id(namespace, base, newest)
    return gym.spec(name)


def _silence_ale() -> Any:
    """Import Atari's package and keep it from greeting in each process; return it."""
    ale = importlib.import_module("ale_py")
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    return ale


def declared_fps(constructor: Any) -> float | None:
    """Return the ``render_fps`` of an environment's metadata, or None without a usable one.

    Args:
        constructor: Gymnasium id, class or function.
    """
    fps = declared_metadata(constructor).get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else None


def declared_metadata(constructor: Any) -> dict[str, Any]:
    """Return an environment's ``metadata`` without making the environment; empty without one.

    Args:
        constructor: Gymnasium id, class or function.
    """
    if isinstance(constructor, str):
        constructor = _loaded(_specification(constructor).entry_point)
    metadata = getattr(constructor, "metadata", None)
    return metadata if isinstance(metadata, dict) else {}


def _loaded(entry_point: Any) -> Any:
    """Return the function or class of an entry point, which may be its name."""
    from gymnasium.envs.registration import load_env_creator

    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _tells_finals(name: str, vector: Any) -> bool:
    """Return True if a vector environment has a separate row for an episode's last observation.

    Raises:
        UserError: It doesn't begin the next episode itself, or doesn't report when.
    """
    autoreset = vector.metadata.get("autoreset_mode")
    mode = getattr(autoreset, "value", autoreset)
    if mode in ("NextStep", "SameStep"):
        return mode == "NextStep"
    raise UserError(
        f'{name}: its metadata["autoreset_mode"] is {autoreset}, expected NEXT_STEP or SAME_STEP',
        "begin the next episode by itself, and say when: gymnasium.vector.AutoresetMode.NEXT_STEP",
    )


def _where(make: str) -> str:
    """Return a hint on an id that isn't registered."""
    near = gymnasium_id(make)
    outdated = near.rpartition("-v")[0] == f"gym:{make}".rpartition("-v")[0]
    if outdated and near != f"gym:{make}":
        return near
    if package := missing_package(f"gym:{make}"):
        return f"pip install '{package}'"
    if ":" in make:
        return "does importing that module register it?"
    if near not in ("", f"gym:{make}"):
        return f"did you mean {near}?"
    return f"if a package registers it, name that too: gym:PACKAGE:{make}"


def wrap_instance(env: Any) -> Callable[..., Any]:
    """Return a constructor that returns an existing environment, once at a time.

    Args:
        env: A ``gymnasium.Env``. It is never closed.
    """
    name = type(env.unwrapped).__name__
    out: list[Any] = []

    class Existing(gymnasium().Wrapper):
        def close(self) -> None:
            if self in out:
                out.remove(self)

    def make(render_mode: str | None = None) -> Any:
        if out:
            again = f'"gym:{env.spec.id}"' if env.spec else f"{name}, or lambda: {name}(…)"
            raise UserError(
                f"{name} is one environment, an object, and the run takes several",
                f"give what makes it: {again}; or with this one: total_agents=1",
            )
        if render_mode is not None and env.render_mode != render_mode:
            raise UserError(
                f"{name} can't be drawn: its render_mode is {env.render_mode}",
                f'make it with render_mode="{render_mode}"',
            )
        out.append(Existing(env))
        return out[0]

    return make
