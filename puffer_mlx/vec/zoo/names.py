"""Names of PettingZoo's parallel environments that are installed, read from folders alone.

Importing PettingZoo takes half a second, and its environments more.
"""

import importlib.util
import re
from pathlib import Path

__all__ = ["needs", "parallel_names"]

_PACKAGES = ("mpe2", "pettingzoo")
_MODULE = re.compile(r".+_v\d+\.py")
_NEEDED = {  # groups of PettingZoo that need more: a module of it
    "atari": "multi_agent_ale_py",
    "butterfly": "pymunk",
    "classic": "pygame",
    "sisl": "pymunk",
}


def parallel_names() -> dict[str, list[str]]:
    """Names as ``pettingzoo:NAME`` takes them, ``sisl.pursuit_v5``, by group: ``sisl``, ``mpe2``.

    Those that can't be imported, since a package of theirs is missing, are among them; ``needs``
    says so. Environments whose agents take turns are left out.
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
    """What is to be installed for a group; empty if it is there."""
    module = _NEEDED.get(group)
    return f"pettingzoo[{group}]" if module and not importlib.util.find_spec(module) else ""
