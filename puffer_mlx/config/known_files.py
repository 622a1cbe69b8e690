"""`.ini` files: the folders that they lie in, and what each says that it is about.

A file is about the environments that its [base] env_name names, else about the one of its own name;
``breakout-a.ini`` is another one about breakout.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from puffer_mlx.config.algorithms import facts
from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.families import FILES
from puffer_mlx.config.parts import algorithms
from puffer_mlx.config.schema import KEYS
from puffer_mlx.config.versions import file_texts
from puffer_mlx.errors import UserError
from puffer_mlx.system import program
from puffer_mlx.system.files import read_text
from puffer_mlx.system.package_data import shipped

PYTHON = "python.ini"  # what all Python environments begin with; then their family's files
_OF_ALGORITHMS = filter(None, (facts(name).layer for name in algorithms()))
LAYERS = PYTHON, *FILES, *_OF_ALGORITHMS  # files that no environment has for its own


def config_folders() -> list[Path]:
    """The folders searched for environments: `./configs`, then the package's."""
    return [folder for folder in (Path("configs"), shipped("configs")) if folder.is_dir()]


def layer(name: str) -> list[Path]:
    """The file of that name which counts; none if there is none."""
    return [path for folder in config_folders() if (path := folder / name).is_file()][:1]


def all_files() -> list[Path]:
    """Those of all these folders and the folders in them, by their paths."""
    return [path for folder in config_folders() for path in sorted(folder.rglob("*.ini"))]


def plain_path(path: Path) -> str:
    """A file's path as messages show it: those that come with puffer_mlx are in ``configs``."""
    for folder in config_folders():
        if path.is_relative_to(folder):
            return (Path("configs") / path.relative_to(folder)).as_posix()
    return str(path)


def env_names(path: Path) -> list[str]:
    """The environments a file is about: the words of its [base] env_name, else its own name."""
    try:
        text = read_text(path, "replace")
    except OSError:  # reading its settings will say what is wrong
        return [path.stem]
    found = re.search(r"^env_name[ \t]*[=:](.*)$", text, re.MULTILINE | re.IGNORECASE)
    words = [word.strip("'\"") for word in re.split("[#;]", found[1])[0].split()] if found else []
    return words if words and words != ["None"] else [path.stem]


def variants() -> dict[str, Path]:
    """Further files about an environment, named like ``breakout-a``, by these names."""
    found: dict[str, Path] = {}
    for path in all_files():
        name, dash, _ = path.stem.partition("-")
        if dash and env_names(path) == [name]:
            found.setdefault(path.stem, path)
    return found


def known_envs() -> list[str]:
    """Every environment that has a file."""
    files = (path for path in all_files() if path.name not in ("default.ini", *LAYERS))
    return sorted({name for path in files for name in env_names(path)})


def known_words() -> list[str]:
    """All that may be named and has a file: environments, and variants of them."""
    return sorted({*known_envs(), *variants()})


def find_config(name: str) -> Path:
    """The file of an environment, or of a path that ends in `.ini`.

    As in PufferLib, a file that has the name among the words of its [base] env_name; NAME.ini
    before others.

    Raises:
        UserError: there is none.
    """
    if name.endswith(".ini"):
        if Path(name).is_file():
            return Path(name)
        raise UserError(f"there is no file {name}", "name an .ini file that exists")
    for folder in config_folders():
        for path in sorted(folder.rglob("*.ini"), key=lambda path: (path.stem != name, path)):
            if name in env_names(path) and path.name not in LAYERS:
                return path
    known = known_words()
    near = closest(name, known)
    hint = f"did you mean {near}? " if near else ""
    hint += f"`{program.COMMAND} list` shows them; or gym:ID, module:factory, a folder, a file"
    raise UserError(f"no configuration has the environment {name!r}", hint)


def last_said(key: str, files: Iterable[Path]) -> str:
    """A key's text in the last of the files that has it; empty if none has."""
    told = [_texts(path).get(key, "") for path in files]
    return next((text for text in reversed(told) if text), "")


def is_whole(path: Path) -> bool:
    """Whether a file is a run's own configuration, saved with all the keys of its time.

    That is assumed if it sets at least half of today's keys.
    """
    known = {f"{section}.{key}" for section, keys in KEYS.items() for key in keys}
    return 2 * len(known & _texts(path).keys()) >= len(known)


def _texts(path: Path) -> dict[str, str]:
    """A file's keys and texts; none if it can't be read: reading its settings says why."""
    try:
        return file_texts(read_text(path, "replace"))
    except OSError:
        return {}
