"""Making Gymnasium's environments, by id or by a function, and what may go wrong there."""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from puffer_mlx.config.memory_needs import refuse_observations
from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import SUCCESSOR, to_install
from puffer_mlx.vec.gym import families, wrapping
from puffer_mlx.vec.gym.agents import Agent, VectorForm
from puffer_mlx.vec.gym.installed import gymnasium, has_own_vector_forms, need_newer, quiet
from puffer_mlx.vec.instances import Buffers
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.python_faults import RAISED, Fault, told, undrawable

__all__ = ["Recipe"]

_MAKING = "failed when it was made"
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")


@dataclass
class Recipe:
    """How an environment is made; picklable, whatever ``make`` is.

    Args:
        name: for messages.
        make: a Gymnasium id, or what returns a ``gymnasium.Env`` or, given ``num_envs``, a
            ``gymnasium.vector.VectorEnv``.
        keywords: further arguments of ``make`` or of ``gymnasium.make``.
        render: make it with ``render_mode="rgb_array"``.
        wrap: Gymnasium's wrappers around it.
        agents: environments that will be made, for what their observations need of memory.
        finals: whether last observations are wanted, each in a row of its own.

    Attributes:
        unread: keywords that count for nothing, and why.
        layout: of rows; it is known when one was looked at.
        ready: what was looked at, the first instance in this process.
        vectorised: whether instances are the vectorised form.
        scales: no: whether there is a vectorised form, ``vector_form`` says.
    """

    name: str
    make: str | Callable[..., Any]
    keywords: dict[str, Any] = field(default_factory=dict)
    render: bool = False
    wrap: Wrap = field(default_factory=Wrap)
    agents: int = 1
    finals: bool = False
    unread: list[str] = field(default_factory=list, init=False)
    layout: Layout | None = field(default=None, init=False)
    ready: Any = field(default=None, init=False)
    vectorised: bool = field(default=False, init=False)
    scales: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        gymnasium()
        for key in wrapping.changed(self.wrap):
            need_newer(f"{self.name}: wrap.{key}")
        if isinstance(self.make, str):
            with _explained(self):
                specification = _specification(self.make)
            if specification.namespace == "ALE":
                found = wrapping.of_game(self.name, self.wrap, self.keywords)
                self.wrap, self.keywords, self.unread = found
            if self.wrap.max_episode_steps:  # in steps as an agent takes them: with the wrappers
                if "max_episode_steps" in self.keywords:
                    said = "env.max_episode_steps and wrap.max_episode_steps are both given"
                    raise UserError(f"{self.name}: {said}", "leave one of them out")
                self.keywords = {**self.keywords, "max_episode_steps": -1}

    def look_at(self, num_envs: int) -> tuple[Any, Any]:
        """Make the first instance, and return one agent's spaces; ``num_envs``: as a vector."""
        if num_envs:
            self.vectorised, self.ready = True, self.vector(num_envs)
            return self.ready.single_observation_space, self.ready.single_action_space
        self.ready = self()
        return self.ready.observation_space, self.ready.action_space

    def instance(
        self, buffers: Buffers, seed: int, num_envs: int | None, number: int
    ) -> Agent | VectorForm:
        """One that writes into ``buffers``, or a vectorised form of ``num_envs``: see ``Makes``.

        Raises:
            UserError: it can't be made, or is otherwise than the first one.
        """
        made, self.ready = self.ready, None
        if made is None:
            made = self.vector(num_envs) if num_envs else self(number, seed - number)
        assert self.layout is not None
        if num_envs:
            return VectorForm(self.name, made, buffers, self.layout, self.finals)
        for what, space, first in zip(
            ("observation", "action"),
            (made.observation_space, made.action_space),
            self.layout.spaces,
            strict=True,
        ):
            if space != first:
                text = f"its {what} space is {space}, that of environment 0 {first}"
                raise Fault(_MAKING, text, number).report(self.name, 0, seed - number)
        return Agent(self.name, made, buffers, self.layout, self.finals)

    def actions(self, buffered: np.ndarray) -> Any:
        """What instances take of a policy's actions: see ``Makes``."""
        assert self.layout is not None
        return (self.layout.actions if self.vectorised else self.layout.each_action)(buffered)

    def close(self) -> None:
        """Close what was looked at and isn't in use."""
        if self.ready is not None:
            self.ready.close()
            self.ready = None

    def __call__(self, number: int | None = None, seed: int = 0) -> Any:
        """One ``gymnasium.Env``.

        Args:
            number: which it is, for messages.
            seed: of number 0, likewise.

        Raises:
            UserError: it can't be made; the message says why.
        """
        with _explained(self, number, seed):
            if isinstance(self.make, str):
                arguments = {"disable_env_checker": True, **self._arguments()}
                made = families.make(_specification(self.make), **arguments)
            else:
                made = self.make(**self._arguments())
            gym = gymnasium()  # VectorEnv is an Env, too, in 0.29
            if isinstance(made, gym.Env) and not isinstance(made, gym.vector.VectorEnv):
                self._refuse_spaces(made)
                return wrapping.wrapped(self.name, made, self.wrap)
        close = getattr(made, "close", None)
        if callable(close):
            close()
        hint = "a function that makes a gymnasium.vector.VectorEnv takes num_envs"
        if callable(getattr(made, "reset", None)) and callable(getattr(made, "step", None)):
            old = any(kind.__module__.partition(".")[0] == "gym" for kind in type(made).__mro__)
            hint = SUCCESSOR if old else "derive it from gymnasium.Env"
        raise UserError(
            f"{self.name}: it made a {type(made).__module__}.{type(made).__qualname__}, "
            "expected a gymnasium.Env",
            hint,
        )

    def vector(self, num_envs: int) -> Any:
        """The environment's own vectorised form: a ``gymnasium.vector.VectorEnv``.

        Raises:
            UserError: it can't be made, or isn't of that kind.
        """
        with _explained(self):
            if isinstance(self.make, str):
                made = gymnasium().make_vec(
                    _specification(self.make),
                    num_envs=num_envs,
                    vectorization_mode="vector_entry_point",
                    **self._arguments(),
                )
            else:
                made = self.make(num_envs=num_envs, **self._arguments())
        found = getattr(made, "num_envs", None)
        if isinstance(made, gymnasium().vector.VectorEnv) and found == num_envs:
            return made
        raise UserError(
            f"{self.name}: asked for num_envs={num_envs}, it made a {type(made).__qualname__}"
            + (f" of {found}" if found is not None else ""),
            "with num_envs it must return a gymnasium.vector.VectorEnv of so many environments",
        )

    def vector_form(self) -> tuple[str, str]:
        """The vectorised form's name, and why it isn't there or doesn't take all the arguments.

        The latter is "" if it is there and does.
        """
        if not has_own_vector_forms():
            return "", f"Gymnasium {gymnasium().__version__} has none that say when episodes begin"
        form: Any = self.make
        if isinstance(form, str):
            specification = _specification(form)
            form = specification.vector_entry_point
            if form is None:
                return "", f"{specification.id} has no vectorised form of its own"
            if specification.additional_wrappers:
                return "", "its vectorised form can't be wrapped"
            if isinstance(form, str):
                with _explained(self):
                    form = _load(form)
        try:
            parameters = inspect.signature(form).parameters
        except (TypeError, ValueError):
            return "", "it doesn't tell whether it takes num_envs"
        name = getattr(form, "__name__", type(form).__name__)
        if "num_envs" not in parameters and not isinstance(self.make, str):
            return name, "it doesn't take num_envs"
        if asked := wrapping.changed(self.wrap):
            return name, f"its vectorised form can't be wrapped (wrap.{', wrap.'.join(asked)})"
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return name, ""
        unknown = [key for key in self._arguments() if key not in parameters]
        return name, f"its vectorised form takes no {unknown[0]!r}" if unknown else ""

    def _refuse_spaces(self, made: Any) -> None:
        """Refuse an environment without spaces, or with observations beyond this machine's memory.

        Gymnasium would allocate them, with their bounds, before anything else sees the space.
        """
        for name in "observation_space", "action_space":
            if not isinstance(getattr(made, name, None), gymnasium().Space):
                hint = f"set self.{name} to one of gymnasium.spaces when it is made"
                raise UserError(f"{self.name}: it has no {name}", hint)
        refuse_observations(self.name, made.observation_space, self.agents)

    def _arguments(self) -> dict[str, Any]:
        return {**self.keywords, "render_mode": "rgb_array"} if self.render else self.keywords

    def __getstate__(self) -> dict[str, Any]:
        """With ``make`` as bytes, so that what fails when they are read fails where it is told."""
        import cloudpickle  # a dependency of Gymnasium

        make = self.make if isinstance(self.make, str) else cloudpickle.dumps(self.make)
        return {**self.__dict__, "make": make, "ready": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(pickled := state["make"], bytes):
            self.make = lambda **keywords: _unpickled(pickled)(**keywords)


def _specification(name: str) -> Any:
    """The registered environment of an id, which may begin with a module to import (MODULE:ID)."""
    from gymnasium.envs import registration

    gym = gymnasium()
    module, _, name = name.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name.startswith("MiniGrid-") and importlib.util.find_spec("minigrid"):
        importlib.import_module("minigrid")
    elif name not in gym.registry and importlib.util.find_spec("ale_py"):
        if name.startswith("ALE/"):
            need_newer(name)
        ale = importlib.import_module("ale_py")  # Atari's
        gym.register_envs(ale)
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # else each process greets
    namespace, base, version = registration.parse_env_id(name)
    if version is None and name not in gym.registry:
        newest = registration.find_highest_version(namespace, base)
        name = registration.get_env_id(namespace, base, newest)
    return gym.spec(name)


def _load(entry_point: str) -> Any:
    from gymnasium.envs.registration import load_env_creator

    return load_env_creator(entry_point)


def _unpickled(pickled: bytes) -> Any:
    import cloudpickle

    return cloudpickle.loads(pickled)


@contextmanager
def _explained(recipe: Recipe, number: int | None = None, seed: int = 0) -> Iterator[None]:
    """What may go wrong when an environment is made, as a ``UserError``."""
    gym = gymnasium()
    try:
        with quiet():
            yield
    except UserError:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise UserError(f"{recipe.name}: {error}", "install what is missing") from None
    except gym.error.Error as error:  # there is no such environment, or it is out of date
        raise UserError(f"{recipe.name}: {error}", _where(recipe.make)) from None
    except ModuleNotFoundError as error:
        raise UserError(f"{recipe.name}: {error}", to_install(error)) from None
    except RAISED as error:
        if hint := undrawable(error):
            raise UserError(f"{recipe.name} can't be drawn: {error}", hint) from None
        word = _KEYWORD.search(str(error)) if isinstance(error, TypeError) else None
        if word and word[1] in recipe._arguments():
            raise _unknown(recipe, word[1]) from None
        raise Fault(_MAKING, told(error), number).report(recipe.name, 0, seed) from None


def _where(make: Any) -> str:
    """Where an id that isn't registered may be."""
    if str(make).startswith("ALE/") and not importlib.util.find_spec("ale_py"):
        return "pip install 'puffer-mlx[atari]'"
    if str(make).startswith("MiniGrid-") and not importlib.util.find_spec("minigrid"):
        return "pip install minigrid"
    if ":" in str(make):
        return "does importing that module register it?"
    return f"if a package registers it, name that too: gym:PACKAGE:{make}"


def _unknown(recipe: Recipe, key: str) -> UserError:
    if key == "render_mode" and key not in recipe.keywords:
        return UserError(
            f"{recipe.name}: it can't be drawn: it takes no render_mode",
            'take a render_mode, and return pictures from render() if it is "rgb_array"',
        )
    form = recipe.make
    if isinstance(form, str):
        form = _specification(form).entry_point
        form = _load(form) if isinstance(form, str) else form
    try:
        known = [
            p.name
            for p in inspect.signature(form).parameters.values()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
    except (TypeError, ValueError):
        known = []
    return UserError(
        f"{recipe.name}: it takes no env.{key}",
        f"it takes {', '.join(known)}" if known else "leave it out",
    )
