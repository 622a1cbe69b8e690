"""puffer_mlx: the trainers of PufferLib 4.0 and 5.0 for MLX: Apple silicon, CUDA, Linux CPUs.

Each folder is a room; its ``__init__.py`` says what belongs there. To read: ``examples/minimal.py``
(4.0's algorithm on one page), then ``rollout``, ``policy``, ``ppo``, ``training``.

Importing the package imports neither MLX nor NumPy. It does choose MLX's BLAS, how it
submits work to a GPU (on Macs the size of command buffers, on CUDA no graphs), and where MLX keeps
what it compiles, which must be done before MLX loads: import puffer_mlx first.
"""

from puffer_mlx.moved import follow
from puffer_mlx.system.blas import use_fast_blas
from puffer_mlx.system.cuda_graphs import submit_directly
from puffer_mlx.system.mac import set_command_buffers
from puffer_mlx.system.private_folders import keep_mlx_private
from puffer_mlx.system.signals import stop_quietly

__version__ = "0.1.0"

follow()
set_command_buffers()
submit_directly()
keep_mlx_private()
try:
    use_fast_blas()
except KeyboardInterrupt:  # while that compiles
    stop_quietly()
    raise
