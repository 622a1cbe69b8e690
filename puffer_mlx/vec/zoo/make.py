"""Making PettingZoo's parallel environments, and telling them from others.

A parallel environment is what looks like one: it has ``possible_agents``, a space for each of them,
and steps with a dictionary of their actions.
"""

import importlib.machinery
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import load_object, to_install
from puffer_mlx.vec.instances import Buffers
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.nearest import nearest
from puffer_mlx.vec.python_faults import RAISED, Fault, told
from puffer_mlx.vec.zoo.agents import DRAWS, Agents, looks_parallel, takes_turns
from puffer_mlx.vec.zoo.names import parallel_names

__all__ = ["ParallelFactory", "ZooRecipe", "find", "makes_parallel"]

PREFIX = "pettingzoo:"
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")
_TURNS = "its agents take turns (AEC), expected a parallel one, in which all act at once"
_CONVERT = (
    "name a function of yours that returns pettingzoo.utils.aec_to_parallel(env); that is for"
    " environments whose agents could as well act at once"
)


class ParallelFactory(NamedTuple):
    """What makes a parallel environment: so much is known of it."""

    make: Callable[..., Any]


def find(name: str) -> ParallelFactory:
    """What makes the environment ``pettingzoo:NAME``.

    Args:
        name: NAME: a module with ``parallel_env`` in it, of any package, ``mpe2.simple_spread_v3``,
            or of PettingZoo itself, ``sisl.pursuit_v5``; or an ID, ``classic/rps_v2``.

    Raises:
        UserError: there is none.
    """
    try:
        import pettingzoo  # type: ignore
    except ImportError as error:
        hint = "pip install 'puffer-mlx[pettingzoo]'"
        raise UserError(f"PettingZoo can't be imported: {error}", hint) from None
    if "/" in name:
        if not hasattr(pettingzoo, "make"):
            raise UserError(
                f"{PREFIX}{name}: PettingZoo {pettingzoo.__version__} knows no IDs",
                f"{PREFIX}{name.replace('/', '.')}, its module",
            )
        try:
            pettingzoo.spec("parallel", name)
        except Exception:
            raise _unknown(name, pettingzoo) from None
        return ParallelFactory(partial(pettingzoo.make, "parallel", name))
    top = name.partition(".")[0]
    if not _is_there(top):
        if importlib.util.find_spec(f"pettingzoo.{top}") is None:
            near = _near(name)
            raise UserError(
                f"{PREFIX}{name}: there is no module {top}",
                near
                or f"{PREFIX}mpe2.simple_spread_v3 (pip install mpe2), for example; or an ID,"
                f" {PREFIX}classic/rps_v2",
            )
        name = f"pettingzoo.{name}"
    with _quiet():
        return ParallelFactory(_parallel_env(name))


def _parallel_env(module: str) -> Any:
    """A module's ``parallel_env``."""
    short = module.removeprefix("pettingzoo.")
    try:
        return load_object(f"{module}:parallel_env")
    except UserError as error:
        found = sys.modules.get(module)
        if hasattr(found, "env"):  # what PettingZoo's modules of both kinds have
            raise UserError(f"{PREFIX}{short}: {_TURNS}", _CONVERT) from None
        near = "" if found or _is_module(module) else _near(short)
        raise UserError(error.message, near or error.hint) from None


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # nor is the package that it would be in
        return False


def _unknown(name: str, pettingzoo: Any) -> UserError:
    """An ID that PettingZoo's registry of parallel environments hasn't."""
    plain = name.replace("_v", "-v")
    if plain in pettingzoo.aec_registry:
        return UserError(f"{PREFIX}{name}: {_TURNS}", _CONVERT)
    near = nearest(plain, pettingzoo.parallel_registry, PREFIX)
    hint = near or "puffer-mlx list has what is installed"
    return UserError(f"{PREFIX}{name}: PettingZoo has no such parallel environment", hint)


def _near(name: str) -> str:
    known = [each for group in parallel_names().values() for each in group]
    return nearest(name, known, PREFIX)


def makes_parallel(name: str, make: Any, keywords: dict[str, Any]) -> bool:
    """Whether a function makes a parallel environment, by having it make one.

    Raises:
        UserError: it makes one of PettingZoo's whose agents take turns.
    """
    if not callable(make):
        return False
    try:
        made = make(**keywords)
    except RAISED:
        return False
    found, turns = looks_parallel(made), takes_turns(made)
    close = getattr(made, "close", None)
    if callable(close):
        close()
    if turns:
        raise UserError(f"{name}: {_TURNS}", _CONVERT)
    return found


@dataclass
class ZooRecipe:
    """How an environment is made: see ``Makes``.

    Args:
        name: for messages.
        make: what makes a parallel environment.
        keywords: its arguments.
        render: make it with ``render_mode="rgb_array"``.
        layout: of rows; it is known when one was looked at.
    """

    name: str
    make: Any
    keywords: dict[str, Any] = field(default_factory=dict)
    render: bool = False
    layout: Layout | None = None
    scales: bool = field(default=False, init=False)  # an instance is one environment

    def one(self, number: int = 0, seed: int = 0) -> Any:
        """A parallel environment.

        Args:
            number: which it is, for messages.
            seed: of number 0, likewise.

        Raises:
            UserError: it can't be made, or isn't one.
        """
        make = self.make.make if isinstance(self.make, ParallelFactory) else self.make
        keywords = {**self.keywords, "render_mode": "rgb_array"} if self.render else self.keywords
        try:
            with _quiet():
                made = make(**keywords)
        except UserError:
            raise
        except ModuleNotFoundError as error:
            raise UserError(f"{self.name}: {error}", to_install(error)) from None
        except RAISED as error:
            word = _KEYWORD.search(str(error)) if isinstance(error, TypeError) else None
            if word and word[1] == "render_mode" and "render_mode" not in self.keywords:
                what = "it can't be drawn: it takes no render_mode"
                raise UserError(f"{self.name}: {what}", DRAWS) from None
            if word and word[1] in keywords:
                raise UserError(f"{self.name}: it takes no env.{word[1]}", "leave it out") from None
            raise Fault("failed when it was made", told(error), number).report(
                self.name, 0, seed
            ) from error
        if looks_parallel(made):
            return made
        if takes_turns(made):
            raise UserError(f"{self.name}: {_TURNS}", _CONVERT)
        raise UserError(
            f"{self.name}: it made a {type(made).__module__}.{type(made).__qualname__}, expected a"
            " pettingzoo.ParallelEnv",
            "return one",
        )

    def instance(self, buffers: Buffers, seed: int, num_envs: int | None, number: int) -> Agents:
        """An environment whose agents write into ``buffers``: see ``Makes``."""
        assert self.layout is not None
        return Agents(self.name, self.one(number, seed - number), buffers, self.layout)

    def actions(self, buffered: np.ndarray) -> list[Any]:
        """What agents do, of a policy's actions."""
        assert self.layout is not None
        return self.layout.each_action(buffered)


def _is_there(top: str) -> bool:
    """Whether there is a module of that name, installed or in this folder."""
    here = importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd())])
    return (importlib.util.find_spec(top) or here) is not None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PettingZoo's advice on how else to make environments, and pygame's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
