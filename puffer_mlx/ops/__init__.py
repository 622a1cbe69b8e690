"""Operations with several forms: plain MLX (the reference), C on a CPU, a kernel on a GPU.

A folder each: ``operation.py`` has the reference and the choice; ``NAME.h`` has the C++, and adds
it to the extension (``cpu/binding.h``); ``NAME.metal.h`` has the kernels' text, which ``gpu.py``
launches. An equation is written once for both, in a header that both include (``words.h``).
``advantages`` and ``draw`` have fused forms alone: their references are pages of ``ppo/``.
``dense`` has no kernel: on a GPU it is MLX's own operations.
"""

from puffer_mlx.ops.choice import (
    FusedOperation,
    extension_on_cpu,
    extension_with_products,
    kernel_on_gpu,
)
from puffer_mlx.ops.dense.operation import dense, relu
from puffer_mlx.ops.discount.operation import discount
from puffer_mlx.ops.gelu.operation import gelu
from puffer_mlx.ops.linear.operation import (
    bias_gradient,
    input_gradient,
    linear,
    linear_columns,
    linear_gradients,
    plus,
    weight_gradient,
)
from puffer_mlx.ops.norm.operation import EPSILON, add_rms_norm
from puffer_mlx.ops.pack.operation import pack, sums_of_squares
from puffer_mlx.ops.put_rows.operation import put_rows
from puffer_mlx.ops.recurrence.operation import (
    factors_of,
    full_on_cpu,
    recurrent_weight_gradient,
    steps_of,
)
from puffer_mlx.ops.take_rows.operation import split_rows, take_rows
from puffer_mlx.ops.take_targets.operation import take_targets

__all__ = [
    "EPSILON",
    "FusedOperation",
    "add_rms_norm",
    "bias_gradient",
    "dense",
    "discount",
    "extension_on_cpu",
    "extension_with_products",
    "factors_of",
    "full_on_cpu",
    "gelu",
    "input_gradient",
    "kernel_on_gpu",
    "linear",
    "linear_columns",
    "linear_gradients",
    "pack",
    "plus",
    "put_rows",
    "recurrent_weight_gradient",
    "relu",
    "split_rows",
    "steps_of",
    "sums_of_squares",
    "take_rows",
    "take_targets",
    "weight_gradient",
]
