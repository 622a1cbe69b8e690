"""Helper functions for checks of a GPU: tolerances, small trainers and devices."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx import config, vec
from puffer_mlx.check.items import Failed, Skipped
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.training.placement import rollout_cores
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Logs, Trainer
from puffer_mlx.trees import named_arrays

# One size for most checks, because compiling kernels for a new size takes seconds.
SMALL_RUN_OPTIONS = [
    *("--vec.total-agents", "64", "--vec.num-buffers", "2", "--env.size", "3"),
    *("--policy.hidden-size", "32", "--policy.num-layers", "1"),
    *("--train.horizon", "16", "--train.minibatch-size", "512", "--train.rollout-device", "cpu"),
    *("--train.overlap", "0", "--train.total-timesteps", "1e9"),
]
ROUNDING_UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}  # relative rounding error
TF32_ROUNDING = 2.0**-11  # relative rounding error of product inputs where MLX uses TF32
REORDERED_SUM_TOLERANCE = 1e-3  # tolerance for sums in another order, after a few epochs


def require(condition: bool, text: str) -> None:
    """Raise ``Failed`` with a text, so that the current check fails, unless a condition holds."""
    if not condition:
        raise Failed(text)


def at_most(name: str, value: float, bound: float) -> str:
    """Fail the current check if a value is above its bound or NaN. Returns both as text."""
    text = f"{name} {value:.3g} (at most {bound:.3g})"
    require(value <= bound, text)
    return text


class WorstCase:
    """Check values against their bounds, and store the value that is closest to its bound.

    Attributes:
        text: Name, value and bound of the stored one.
    """

    def __init__(self) -> None:
        self._largest_fraction = -1.0
        self.text = "nothing was compared"

    def add(self, name: str, value: float, bound: float) -> None:
        """Raise ``Failed`` if a value exceeds its bound; store it if it is the worst so far."""
        text = at_most(name, value, bound)
        if value / bound > self._largest_fraction:
            self._largest_fraction = value / bound
            self.text = text


def relative_difference(result: Any, expected: Any) -> float:
    """Return the largest difference of two arrays, relative to the largest expected value."""
    result, expected = (np.array(a.astype(mx.float32)) for a in (result, expected))
    require(result.shape == expected.shape, f"shape {result.shape}, expected {expected.shape}")
    return float(np.abs(result - expected).max() / max(1e-6, np.abs(expected).max()))


def need_gpu() -> None:
    """Skip the current check if MLX has no GPU or the user chose the CPU."""
    if not has_gpu():
        raise Skipped("MLX has no GPU on this machine")
    if mx.default_device() != mx.gpu:
        raise Skipped("--device cpu")


def need_time(quick: bool) -> None:
    """Skip the current check, which takes long, in a run with ``--quick``."""
    if quick:
        raise Skipped("not with --quick")


def rounding_unit(precision: str) -> float:
    """Return the relative rounding error of activations and product inputs in a precision."""
    tf32 = mx.default_device() == mx.gpu and has_tf32()
    return max(ROUNDING_UNIT[precision], TF32_ROUNDING) if tf32 else ROUNDING_UNIT[precision]


def has_tf32() -> bool:
    """Return True if the GPU may use TF32 for float32 products: CUDA, and Apple M5 or later.

    ``MLX_ENABLE_TF32=0`` disables TF32. A Mac's architecture is ``applegpu_g``, a generation (17:
    M5) and a letter. Other names are assumed to be newer GPUs.
    """
    if os.environ.get("MLX_ENABLE_TF32") == "0":
        return False
    if not mx.metal.is_available():
        return True
    generation = re.match(r"applegpu_g(\d+)", str(mx.device_info(mx.gpu)["architecture"]))
    return not generation or int(generation[1]) >= 17


@contextmanager
def on(device: mx.Device) -> Iterator[None]:
    """Use a device as MLX's default device within a ``with`` block."""
    previous = mx.default_device()
    mx.set_default_device(device)
    try:
        yield
    finally:
        mx.set_default_device(previous)


@contextmanager
def trainer(
    *options: str,
    env: str = "squared",
    base: Sequence[str] = SMALL_RUN_OPTIONS,
    wrap: Callable[[Any], Any] = lambda environments: environments,
    weights: Any = None,
) -> Iterator[Trainer]:
    """Create a trainer for a ``with`` block, by default of a very small run.

    Args:
        options: Command-line options, which override ``base``.
        env: Name of the environment.
        base: Default command-line options.
        wrap: Function that wraps the environments before the trainer gets them.
        weights: Initial weights, or None for random ones.
    """
    settings = config.load(env, [*base, *options])
    with vec.make(settings, rollout_cores(settings)) as environments:
        yield Run.open(settings, wrap(environments), weights=weights).trainer


def max_loss_difference(runs: Sequence[Logs], reference: Sequence[Logs]) -> float:
    """Return the largest difference between the losses of two runs, relative to max(1, loss)."""
    require(len(runs) == len(reference), f"{len(runs)} epochs, expected {len(reference)}")
    differences = []
    for record, expected_record in zip(runs, reference, strict=True):
        shared = {
            name for name in record.keys() & expected_record.keys() if name.startswith("loss/")
        }
        require("loss/total" in shared, f"an epoch without losses: {record or expected_record}")
        for name in shared - {"loss/first_ratio_error"}:  # itself a difference, near 0
            differences.append(
                abs(record[name] - expected_record[name]) / max(1.0, abs(expected_record[name]))
            )
    return float(np.max(differences))  # NaN if any difference is NaN


def determinism_tolerance() -> float:
    """Return the tolerance for two runs that should be equal: 0 on a CPU, above 0 on a GPU."""
    return 0.0 if mx.default_device() == mx.cpu else REORDERED_SUM_TOLERANCE


def flatten_arrays(tree: Any) -> np.ndarray:
    """Return all values of a tree of arrays as one float32 vector."""
    return np.concatenate([np.array(a.astype(mx.float32)).ravel() for _, a in named_arrays(tree)])
