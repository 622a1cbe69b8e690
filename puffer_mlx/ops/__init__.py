"""Operations with several implementations: plain MLX, C++ on a CPU, a kernel on a GPU.

Each operation has a folder. Its ``__init__.py`` has the plain implementation, chooses an
implementation and launches kernels. ``NAME.h`` has the C++ and registers it with the extension
(``cpu/binding.h``). ``NAME.metal.h`` has the kernels. Equations that both use are in a header that
both include (``portable.h``). The plain implementations of ``draw``, and of advantages on a GPU,
are in ``ppo/``.
"""

# ruff: noqa: F401

from puffer_mlx.ops.advantages import discount
from puffer_mlx.ops.linear import (
    bias_gradient,
    dense,
    input_gradient,
    linear_columns,
    plus,
    relu,
    weight_gradient,
)
from puffer_mlx.ops.norm import EPSILON, add_rms_norm
from puffer_mlx.ops.pack import sums_of_squares, unpack_arrays
from puffer_mlx.ops.recurrence import (
    default_on_cpu,
    recurrent_weight_gradient,
    split_factors,
    split_steps,
)
from puffer_mlx.ops.rows import put_rows, split_rows, take_rows, take_several, take_targets
