"""Names of PettingZoo's parallel environments: list the installed ones, find a constructor.

The list is read from folders, because importing PettingZoo takes half a second, and its
environments take longer.
"""

import importlib.machinery
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import load_object, nearest

PREFIX = "pettingzoo:"
_PACKAGES = ("mpe2", "pettingzoo")
_MODULE = re.compile(r".+_v\d+\.py")
_NEEDED = {  # module required by a group of PettingZoo
    "atari": "multi_agent_ale_py",
    "butterfly": "pymunk",
    "classic": "pygame",
    "sisl": "pymunk",
}


class ParallelFactory(NamedTuple):
    """A constructor of parallel environments."""

    make: Callable[..., Any]


def takes_turns(name: str) -> UserError:
    """Return the error for an environment of PettingZoo's other kind, AEC."""
    return UserError(
        f"{name}: its agents take turns (AEC), expected a parallel one, in which all act at once",
        "name a function of yours that returns pettingzoo.utils.aec_to_parallel(env); that is for"
        " environments whose agents could as well act at once",
    )


def parallel_names() -> dict[str, list[str]]:
    """Return the names for ``pettingzoo:NAME`` by group, such as ``sisl.pursuit_v5`` in ``sisl``.

    Contains environments that can't be imported because a package is missing (``needs``), but none
    whose agents act one after another.
    """
    groups: dict[str, list[str]] = {}
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            files = [*folder.glob("*.py"), *folder.glob("*/*.py")]
            for path in sorted(path for path in files if _MODULE.fullmatch(path.name)):
                group = package if path.parent == folder else path.parent.name
                if "parallel_env" in path.read_text(encoding="utf-8", errors="replace"):
                    groups.setdefault(group, []).append(f"{group}.{path.stem}")
    return groups


def needs(group: str) -> str:
    """Return the package to install for a group; "" if it is installed."""
    module = _NEEDED.get(group)
    return f"pettingzoo[{group}]" if module and not importlib.util.find_spec(module) else ""


def find(name: str) -> ParallelFactory:
    """Return the constructor of ``pettingzoo:NAME``.

    Args:
        name: Module with ``parallel_env`` of any package, such as ``mpe2.simple_spread_v3``, or of
            PettingZoo, such as ``sisl.pursuit_v5``; or an ID, such as ``classic/rps_v2``.

    Raises:
        UserError: There is no such module.
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
    with quiet():
        return ParallelFactory(_parallel_env(name))


def _parallel_env(module: str) -> Any:
    """A module's ``parallel_env``."""
    short = module.removeprefix("pettingzoo.")
    try:
        return load_object(f"{module}:parallel_env")
    except UserError as error:
        loaded = sys.modules.get(module)
        if hasattr(loaded, "env"):  # what PettingZoo's modules of both kinds have
            raise takes_turns(PREFIX + short) from None
        near = "" if loaded or _is_module(module) else _near(short)
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
        return takes_turns(PREFIX + name)
    near = nearest(plain, pettingzoo.parallel_registry, PREFIX)
    hint = near or "puffer-mlx list has what is installed"
    return UserError(f"{PREFIX}{name}: PettingZoo has no such parallel environment", hint)


def _near(name: str) -> str:
    known = [each for group in parallel_names().values() for each in group]
    return nearest(name, known, PREFIX)


def _is_there(top: str) -> bool:
    """Return True if a module of that name is installed or in the working directory."""
    local = importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd())])
    return (importlib.util.find_spec(top) or local) is not None


def quiet() -> AbstractContextManager[Any]:
    """Without PettingZoo's advice on how else to make environments, and pygame's."""
    return warnings.catch_warnings(action="ignore")
