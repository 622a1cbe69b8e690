"""Which parts there are to choose from, found by listing folders and without importing one."""

import ast
from functools import cache
from pathlib import Path
from pkgutil import iter_modules

PACKAGE = Path(__file__).resolve().parents[1]


def network_folders() -> dict[str, Path]:
    """Each network's folder by its name, as ``torch.network`` says it."""
    return {name: file.parent for name, file in _named("networks/*/__init__.py").items()}


def encoder_files() -> dict[str, Path]:
    """Each encoder's file by its name, as ``torch.encoder`` says it."""
    return _named("encoders/*.py")


def algorithms() -> tuple[str, ...]:
    """The algorithms, as ``train.algorithm`` says them."""
    return _modules("ppo/algorithms")


def optimizers() -> tuple[str, ...]:
    """The optimizers, as ``train.optimizer`` says them."""
    return _modules("ppo/optimizers")


def log_formats() -> tuple[str, ...]:
    """The logs of other programs, as ``base.log_format`` says them."""
    return _modules("tracking/formats")


def trackers() -> tuple[str, ...]:
    """The trackers of runs, as ``base.track`` says them."""
    return _modules("tracking/trackers")


def _modules(where: str) -> tuple[str, ...]:
    return tuple(sorted(found.name for found in iter_modules([str(PACKAGE / where)])))


@cache
def _named(pattern: str) -> dict[str, Path]:
    """Files of policies by the name that they say: ``NAME = "..."``."""
    files = {}
    for file in sorted((PACKAGE / "policy").glob(pattern)):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign([ast.Name("NAME")], ast.Constant(str(name))):
                    files[name] = file
    return files
