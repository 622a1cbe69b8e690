"""Which networks there are, without importing one: a folder each of ``policy/networks``."""

import ast
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "policy" / "networks"


@cache
def network_folders() -> dict[str, Path]:
    """Each network's folder by its name, which its ``__init__.py`` says: ``NAME = "..."``."""
    found = {}
    for file in sorted(FOLDER.glob("*/__init__.py")):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign([ast.Name("NAME")], ast.Constant(str(name))):
                    found[name] = file.parent
    return found
