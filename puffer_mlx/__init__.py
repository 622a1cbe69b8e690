"""puffer_mlx: the trainers of PufferLib 4.0 and 5.0 for MLX: Apple silicon, CUDA, Linux CPUs.

Each folder is a room; its ``__init__.py`` describes the contents. Start with
``examples/minimal.py`` (4.0's algorithm on one page), then read ``rollout``, ``policy``, ``ppo``
and ``training``.

Programs and notebooks use ``train``, ``Trainer``, ``Policy``, ``evaluate``, ``play``,
``play_match`` and ``plot`` (docs/library.md). Each is imported on first access.

Importing the package imports neither MLX nor NumPy. It sets options that MLX reads when it loads:
the BLAS library, the submission of GPU work (the size of command buffers on Macs, no graphs on
CUDA) and the folder for compiled code. So import puffer_mlx before MLX.
"""

from puffer_mlx.system.early_signals import end_at_ctrl_c, interruptible

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

_HOMES = {  # module of each public name
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
with interruptible():
    use_fast_blas()


def __getattr__(name: str) -> Any:
    if name == "vec":  # for puffer_mlx.vec.make
        return import_module(f"{__name__}.vec")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))


def __dir__() -> list[str]:
    return sorted(__all__)
