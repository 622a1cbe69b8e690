"""Helpers of the checks: bounds, small trainers and devices."""

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

# One size for most items, because compiling for a GPU takes seconds per size.
SMALL = [
    *("--vec.total-agents", "64", "--vec.num-buffers", "2", "--env.size", "3"),
    *("--policy.hidden-size", "32", "--policy.num-layers", "1"),
    *("--train.horizon", "16", "--train.minibatch-size", "512", "--train.rollout-device", "cpu"),
    *("--train.overlap", "0", "--train.total-timesteps", "1e9"),
]
UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}  # relative rounding error
TF32 = 2.0**-11  # relative rounding error of product inputs where MLX uses TF32
REORDERED = 1e-3  # tolerance for sums in another order, after a few epochs


def require(condition: bool, text: str) -> None:
    """Raise Failed with a text unless a condition holds."""
    if not condition:
        raise Failed(text)


def at_most(name: str, value: float, bound: float) -> str:
    """Raise Failed unless ``value <= bound``, which is false for NaN. Returns both as text."""
    text = f"{name} {value:.3g} (at most {bound:.3g})"
    require(value <= bound, text)
    return text


class Worst:
    """Check values against separate bounds and report the value nearest to its bound."""

    def __init__(self) -> None:
        self._share = -1.0
        self.text = "nothing was compared"

    def add(self, name: str, value: float, bound: float) -> None:
        """Raise Failed unless ``value <= bound``."""
        text = at_most(name, value, bound)
        if value / bound > self._share:
            self._share = value / bound
            self.text = text


def difference(ours: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest expected value."""
    ours, expected = (np.array(a.astype(mx.float32)) for a in (ours, expected))
    require(ours.shape == expected.shape, f"shape {ours.shape}, expected {expected.shape}")
    return float(np.abs(ours - expected).max() / max(1e-6, np.abs(expected).max()))


def need_gpu() -> None:
    """Skip the item if MLX has no GPU or the user chose the CPU."""
    if not has_gpu():
        raise Skipped("this MLX has no GPU")
    if mx.default_device() != mx.gpu:
        raise Skipped("--device cpu")


def need_time(quick: bool) -> None:
    """Skip the item in a quick run."""
    if quick:
        raise Skipped("not with --quick")


def unit(precision: str) -> float:
    """Return the relative rounding error of activations and product inputs."""
    tf32 = mx.default_device() == mx.gpu and has_tf32()
    return max(UNIT[precision], TF32) if tf32 else UNIT[precision]


def has_tf32() -> bool:
    """Return True if the GPU may use TF32 for float32 products: CUDA, and Apple M5 or later.

    ``MLX_ENABLE_TF32=0`` disables it. A Mac's architecture is ``applegpu_g``, a generation (17: M5)
    and a letter. Other names are taken for newer GPUs.
    """
    if os.environ.get("MLX_ENABLE_TF32") == "0":
        return False
    if not mx.metal.is_available():
        return True
    generation = re.match(r"applegpu_g(\d+)", str(mx.device_info(mx.gpu)["architecture"]))
    return not generation or int(generation[1]) >= 17


@contextmanager
def on(device: mx.Device) -> Iterator[None]:
    """Set the default device within the context."""
    before = mx.default_device()
    mx.set_default_device(device)
    try:
        yield
    finally:
        mx.set_default_device(before)


@contextmanager
def trainer(
    *options: str,
    env: str = "squared",
    base: Sequence[str] = SMALL,
    wrap: Callable[[Any], Any] = lambda environments: environments,
    weights: Any = None,
) -> Iterator[Trainer]:
    """Create a trainer of an environment and close it at the end.

    Args:
        options: Command-line options, which override ``base``.
        env: Name of the environment.
        base: Default command-line options.
        wrap: Maps the environments to those that the trainer gets.
        weights: Initial weights, or None for random ones.
    """
    settings = config.load(env, [*base, *options])
    with vec.make(settings, rollout_cores(settings)) as environments:
        yield Run.open(settings, wrap(environments), weights=weights).trainer


def max_loss_difference(runs: Sequence[Logs], others: Sequence[Logs]) -> float:
    """Return the largest difference between the losses of two runs, relative to max(1, loss)."""
    require(len(runs) == len(others), f"{len(runs)} epochs and {len(others)}")
    differences = []
    for one, other in zip(runs, others, strict=True):
        shared = {name for name in one.keys() & other.keys() if name.startswith("loss/")}
        require("loss/total" in shared, f"an epoch without losses: {one or other}")
        for name in shared - {"loss/first_ratio_error"}:
            differences.append(abs(one[name] - other[name]) / max(1.0, abs(other[name])))
    return float(np.max(differences))  # NaN if one is


def determinism_tolerance() -> float:
    """Return the allowed difference between two runs of the same work: 0 on a CPU."""
    return 0.0 if mx.default_device() == mx.cpu else REORDERED


def flat(tree: Any) -> np.ndarray:
    """Return all values of a tree of arrays as one float32 vector."""
    return np.concatenate([np.array(a.astype(mx.float32)).ravel() for _, a in named_arrays(tree)])
