"""Import paths that were documented before the package had rooms: each is its module of today."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "cpu_ops": "ops.cpu_extension",
    "devices": "system.devices",
    "dialects": "export.dialects",
    "notebook": "display.notebook",
    "optim": "ppo.optim",
    "pictures": "display.frames",
    "remembered": "checkpoint.environment_statistics",
    "torch_modules": "export.torch_modules",
    "trainer": "training.trainer",
    "weights_io": "checkpoint.weight_files",
}
FUNCTIONS = {"evaluate": "evaluation"}  # of such a name there is a function at the top now


class _Moved(MetaPathFinder, Loader):
    """Finds ``puffer_mlx.OLD`` where it is now; both names are one module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        known = package == "puffer_mlx" and old in {**MOVED, **FUNCTIONS}
        return ModuleSpec(fullname, self) if known else None

    def exec_module(self, module: ModuleType) -> None:
        package, _, old = module.__name__.partition(".")
        if old in MOVED:
            sys.modules[module.__name__] = importlib.import_module(f"{package}.{MOVED[old]}")
            return
        function = getattr(sys.modules[package], old)  # what was in the module hangs on it
        vars(function).update(vars(importlib.import_module(f"{package}.{FUNCTIONS[old]}")))
        sys.modules[module.__name__] = function


def follow() -> None:
    """Let imports by the old paths find their modules."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
