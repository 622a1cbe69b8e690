"""Choose actions on a GPU in one kernel, from the outputs of a policy's step in MLX.

Plain MLX needs about twenty launches. It compiles a third of them when it first runs, which takes
15 s on CUDA.
"""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import MIN_ARRAY_SIZE, constant_array, launch, placeholder
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.policy.distributions import Categorical, Gaussian
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.backend import backend

KERNEL_FILE = Path(__file__).with_name("choose_actions.metal.h")


def chooses_on_gpu(policy: Policy, n: int) -> bool:
    """Return True if the GPU kernel ``choose_actions`` can sample actions of n agents."""
    supported = type(policy.distribution) in (Categorical, Gaussian)
    if backend() == "cpu" or n < MIN_ARRAY_SIZE or not supported:
        return False
    return KERNEL.choose(policy.act, policy.distribution.sample) is not None


def choose_actions(
    policy: Policy,
    outputs: mx.array | tuple[mx.array, mx.array],
    values: mx.array,
    noise: mx.array,
    mask: mx.array | None,
) -> mx.array:
    """Sample actions from a policy's outputs in one GPU launch, as ``distribution.sample`` does.

    Args:
        policy: The acting policy.
        outputs: Outputs of ``Policy.step``, float32.
        values: (n,) float32, values of ``Policy.step``.
        noise: (n, heads) float32, from ``distribution.noise``.
        mask: (n, A) uint8, non-zero where legal, or None.

    Returns:
        Actions, their log-probabilities and the values: (heads + 2, n) float32.
    """
    action = policy.decoder.action
    n = len(values)
    means, logstd = outputs if action.continuous else (outputs, placeholder(mx.float32))  # type: ignore
    inputs = {
        "outputs": means,
        "values": values,
        "noise": noise,
        "logstd": logstd,
        "limit": constant_array(policy.decoder.limits.for_kernels),
        "masks": placeholder(mx.uint8) if mask is None else mask,
        "sizes": constant_array(*action.sizes),
        "shape": {"n": n, "A": action.logits},
    }
    shapes = {"chosen": (action.heads + 2, n)}
    constants = {"HEADS": 0 if action.continuous else action.heads}
    constants["MASKED"] = int(mask is not None)
    return launch(KERNEL_FILE, "choose_actions", inputs, shapes, n, **constants)[0]  # type: ignore


KERNEL = Implementation(("policy.policy",), "the kernel that chooses actions", gpu=choose_actions)
