"""Which networks and encoders there are, without importing one: folders of ``policy/``."""

import ast
from functools import cache
from pathlib import Path

POLICY = Path(__file__).resolve().parents[1] / "policy"


def network_folders() -> dict[str, Path]:
    """Each network's folder by its name, as ``torch.network`` says it."""
    return _folders("networks")


def encoder_folders() -> dict[str, Path]:
    """Each encoder's folder by its name, as ``torch.encoder`` says it."""
    return _folders("encoders")


@cache
def _folders(where: str) -> dict[str, Path]:
    """Folders by the name that their ``__init__.py`` says: ``NAME = "..."``."""
    found = {}
    for file in sorted((POLICY / where).glob("*/__init__.py")):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign([ast.Name("NAME")], ast.Constant(str(name))):
                    found[name] = file.parent
    return found
