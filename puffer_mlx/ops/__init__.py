"""Operations with several forms: plain MLX (the reference), C on a CPU, a kernel on a GPU.

A folder each: ``__init__.py`` has the reference, the choice and what launches the kernels;
``NAME.h`` has the C++, and adds it to the extension (``cpu/binding.h``); ``NAME.metal.h`` has the
kernels' text. An equation is written once for both, in a header that both include (``portable.h``).
The references of ``draw``, and of advantages on a GPU, are pages of ``ppo/``.
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
from puffer_mlx.ops.pack import sums_of_squares, unpack
from puffer_mlx.ops.recurrence import factors_of, full_on_cpu, recurrent_weight_gradient, steps_of
from puffer_mlx.ops.rows import put_rows, split_rows, take_rows, take_several, take_targets
