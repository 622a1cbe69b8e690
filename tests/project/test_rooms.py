"""Rooms import downwards only: Python's imports, and ``#include`` lines in C.

A room is a folder of the package, or a file beside the folders. A new file in a room needs no edit
here; a new room needs a floor.
"""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "puffer_mlx"

# A room imports from rooms on the floors below it, and from those to its right on its own floor.
FLOORS = (
    "cli library",
    "check sweep display",
    "evaluation",
    "training export",
    "rollout distributed checkpoint",
    "ppo policy vec",
    "ops profiling tracking",
    "config",
    "system errors spec trees",
)
PLACE = {room: place for place, room in enumerate(reversed(" ".join(FLOORS).split()))}

NUMPY_ONLY = {"vec", "config"}
MLX_ONLY = {"policy", "ppo", "ops"}
BOTH = {"rollout", "checkpoint", "profiling", "distributed"}  # memory, files, costs, messages
GUESTS = {"torch", "pufferlib", "wandb", "tensorboard", "optuna", "matplotlib", "gymnasium"}
GUESTS |= {"trackio", "imageio_ffmpeg", "PIL", "IPython", "onnx", "onnxruntime"}
HOSTS = {  # modules made of a guest's classes: they are imported inside functions themselves
    "export.torch_modules": {"torch"},
    "export.encoders.torch_images": {"torch"},
    "sweep.engine.*": {"optuna"},
}


def imports(node: ast.AST, at_import: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, True if it runs at import time) of every import below ``node``.

    ``from a import b`` yields ``a.b`` if that is a module of this package, otherwise ``a``.
    """
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            yield from ((alias.name, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: write imports in full"
            assert child.module
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield full if full in FULL else child.module, at_import
        else:
            yield from imports(child, at_import and not inside)


def dotted(path: Path) -> str:
    """Return the dotted name of a module's file within the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


DOORS = {PACKAGE / "__init__.py", PACKAGE / "__main__.py"}
MODULES = {dotted(path): path for path in PACKAGE.rglob("*.py") if path not in DOORS}
FULL = {f"puffer_mlx.{module}" for module in MODULES}
NAMES = {module: list(imports(ast.parse(path.read_text()))) for module, path in MODULES.items()}


def ours(names: list[tuple[str, bool]], at_import: bool = False) -> set[str]:
    """Return those of some imports that are modules of this package.

    If ``at_import``, only those that run at import.
    """
    found = {name.removeprefix("puffer_mlx.") for name, now in names if now or not at_import}
    return found & set(MODULES)


def outsiders(names: list[tuple[str, bool]], at_import: bool = False) -> set[str]:
    return {name.split(".")[0] for name, now in names if now or not at_import} - {"puffer_mlx"}


def room(module: str) -> str:
    return module.split(".")[0]


ARROWS = {module: ours(names) - {module} for module, names in NAMES.items()}


INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
HEADERS = [path for path in PACKAGE.rglob("*.h") if path.relative_to(PACKAGE).parts[0] in PLACE]


def includes(header: Path, text: str) -> set[str]:
    """Return the modules of the package from whose folders a C header includes files.

    A name is looked up beside the header, then in ``ops/``, then in the package.
    """
    found = set()
    for name in INCLUDE.findall(text):
        places = (header.parent / name, PACKAGE / "ops" / name, PACKAGE / name)
        target = next((place.resolve() for place in places if place.is_file()), None)
        if target is not None and target.is_relative_to(PACKAGE):
            found.add(dotted(target.parent))
    return found


def hosted(module: str) -> set[str]:
    """Return the third-party packages that a module may import at import time."""
    return next((guests for each, guests in HOSTS.items() if fnmatch(module, each)), set())


def upwards(arrows: dict[str, set[str]]) -> list[str]:
    """List imports between packages that go against their order, from lower to higher."""
    return [
        f"{module} imports {other}"
        for module, others in arrows.items()
        for other in sorted(others)
        if room(module) != room(other) and PLACE[room(module)] <= PLACE[room(other)]
    ]


def test_every_room_has_a_floor():
    assert sorted(PLACE) == sorted({room(module) for module in MODULES})


def test_no_room_imports_or_includes_upwards():
    included = {dotted(path): includes(path, path.read_text()) for path in HEADERS}
    assert any("ops.gpu" in targets for targets in included.values())
    assert upwards(ARROWS) + upwards(included) == []


def test_no_modules_import_each_other_in_a_circle():
    graphlib.TopologicalSorter(ARROWS).prepare()


def knows_too_much(module: str, known: set[str]) -> bool:
    """Return True if a module imports NumPy or MLX although its package must not."""
    if room(module) in NUMPY_ONLY:
        return "mlx" in known
    if room(module) in MLX_ONLY:
        return "numpy" in known
    below_export = PLACE[room(module)] < PLACE["export"] and room(module) not in BOTH
    return below_export and {"numpy", "mlx"} <= known


def test_numpy_and_mlx_meet_in_few_rooms():
    known = {module: outsiders(names) for module, names in NAMES.items()}
    assert [module for module, names in known.items() if knows_too_much(module, names)] == []


def test_optional_packages_are_imported_inside_functions():
    wrong = {
        module: outsiders(names, at_import=True) & GUESTS - hosted(module)
        for module, names in NAMES.items()
    }
    assert {module: guests for module, guests in wrong.items() if guests} == {}
    hosts = {module for module in NAMES if hosted(module)}
    free = NAMES.keys() - hosts
    assert [module for module in free if ours(NAMES[module], at_import=True) & hosts] == []


def test_config_and_spec_do_not_load_mlx():
    code = "import sys, puffer_mlx.config, puffer_mlx.spec; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
