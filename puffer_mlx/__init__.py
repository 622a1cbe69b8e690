"""The trainers of PufferLib 4.0 and 5.0 on MLX, for Apple silicon, CUDA and Linux CPUs.

The ``__init__.py`` of each folder describes its contents. To read the code, start with
``examples/minimal.py`` (4.0's algorithm on one page), then ``rollout``, ``policy``, ``ppo`` and
``training``.

Programs and notebooks use ``train``, ``Trainer``, ``Policy``, ``evaluate``, ``play``,
``play_match`` and ``plot`` (docs/library.md). These names are imported on first access.

Importing the package imports neither MLX nor NumPy. It sets options that MLX reads when it loads:
the BLAS library, how GPU work is submitted (larger command buffers on Macs, no CUDA graphs) and the
folder for compiled code. So import puffer_mlx before MLX.
"""

from puffer_mlx.system.early_signals import end_at_ctrl_c, raise_at_ctrl_c

end_at_ctrl_c()

# ruff: noqa: E402 - end_at_ctrl_c must run before these imports
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from puffer_mlx.system.blas import use_fast_blas
from puffer_mlx.system.mac import set_command_buffers
from puffer_mlx.system.private_folders import make_mlx_cache_private

if TYPE_CHECKING:
    from puffer_mlx.cli.plot import plot
    from puffer_mlx.config import Config
    from puffer_mlx.errors import UserError
    from puffer_mlx.library.evaluating import evaluate, play, play_match
    from puffer_mlx.library.policy import Policy
    from puffer_mlx.library.trainer import Trainer, train

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Policy",
    "Trainer",
    "UserError",
    "__version__",
    "evaluate",
    "play",
    "play_match",
    "plot",
    "train",
]

_MODULES = {  # by public name: the module that defines it
    "Config": "config",
    "Policy": "library.policy",
    "Trainer": "library.trainer",
    "UserError": "errors",
    "evaluate": "library.evaluating",
    "play": "library.evaluating",
    "play_match": "library.evaluating",
    "plot": "cli.plot",
    "train": "library.trainer",
}

set_command_buffers()
os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")  # slower with graphs: decision 0018
make_mlx_cache_private()
with raise_at_ctrl_c():
    use_fast_blas()


def __getattr__(name: str) -> Any:
    if name == "vec":  # for puffer_mlx.vec.make
        return import_module(f"{__name__}.vec")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return sorted(__all__)
