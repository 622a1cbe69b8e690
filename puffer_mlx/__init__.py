"""puffer_mlx: the trainers of PufferLib 4.0 and 5.0 for MLX: Apple silicon, CUDA, Linux CPUs.

Each folder is a room; its ``__init__.py`` says what belongs there. To read: ``examples/minimal.py``
(4.0's algorithm on one page), then ``rollout``, ``policy``, ``ppo``, ``training``.

``train``, ``Trainer``, ``Policy``, ``evaluate``, ``play`` and ``play_match`` are what programs and
notebooks call (docs/library.md); each is imported when it is first asked for.

Importing the package imports neither MLX nor NumPy. It does choose MLX's BLAS, how it
submits work to a GPU (on Macs the size of command buffers, on CUDA no graphs), and where MLX keeps
what it compiles, which must be done before MLX loads: import puffer_mlx first.
"""

from puffer_mlx.system.early_signals import end_at_ctrl_c, interruptible

end_at_ctrl_c()

# ruff: noqa: E402 - Ctrl-C may come while these are imported
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from puffer_mlx.system.blas import use_fast_blas
from puffer_mlx.system.mac import set_command_buffers
from puffer_mlx.system.private_folders import keep_mlx_private

if TYPE_CHECKING:
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
    "train",
]

_HOMES = {  # where the names at the top are
    "Config": "config",
    "Policy": "library.policy",
    "Trainer": "library.trainer",
    "UserError": "errors",
    "evaluate": "library.evaluating",
    "play": "library.evaluating",
    "play_match": "library.evaluating",
    "train": "library.trainer",
}

set_command_buffers()
os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")  # they cost more than they save: decision 0018
keep_mlx_private()
with interruptible():
    use_fast_blas()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))


def __dir__() -> list[str]:
    return sorted(__all__)
