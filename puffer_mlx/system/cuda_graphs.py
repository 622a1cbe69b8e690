"""CUDA only: whether MLX submits kernels one by one, or gathers them into CUDA graphs.

MLX makes a graph of some hundred operations, updates one that it made before, and launches that. A
minibatch of ours is some thirty operations, an agent's step one: making the graph takes longer than
it saves. On the H200 the smallest evaluation takes 32 µs instead of 56 without them, and Breakout's
training took 31 ms instead of 34 – 41 (``benchmarks/RESULTS.md``). Imports neither MLX nor NumPy.
"""

import os
from collections.abc import MutableMapping

VARIABLE = "MLX_USE_CUDA_GRAPHS"


def submit_directly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have MLX submit kernels one by one, unless the environment says; before MLX loads.

    MLX's builds without CUDA don't read the variable.
    """
    environment.setdefault(VARIABLE, "0")
