"""What the items share: how they pass, fail and are skipped, small trainers, devices."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx import config, vec
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.training.placement import rollout_cores
from puffer_mlx.training.run import Run
from puffer_mlx.training.trainer import Logs, Trainer
from puffer_mlx.trees import named

# One size for most items: a GPU's compiler takes seconds for each new one.
SMALL = [
    *("--vec.total-agents", "64", "--vec.num-buffers", "2", "--env.size", "3"),
    *("--policy.hidden-size", "32", "--policy.num-layers", "1"),
    *("--train.horizon", "16", "--train.minibatch-size", "512", "--train.rollout-device", "cpu"),
    *("--train.overlap", "0", "--train.total-timesteps", "1e9"),
]
UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}  # rounding, relative
TF32 = 2.0**-11  # of a float32 product's inputs, where MLX takes tensor cores by default
REORDERED = 1e-3  # what a GPU may make of one sum in two runs, after a few epochs


class Skipped(Exception):
    """The item doesn't apply to this machine, or not to this run; says why."""


class Failed(Exception):
    """The item fails; says the number, and what was expected."""


def require(condition: bool, text: str) -> None:
    """Fail with a text unless a condition holds."""
    if not condition:
        raise Failed(text)


def at_most(name: str, value: float, bound: float) -> str:
    """Fail unless ``value <= bound`` (a NaN isn't); returns both as text."""
    text = f"{name} {value:.3g} (at most {bound:.3g})"
    require(value <= bound, text)
    return text


class Worst:
    """Values with bounds of their own, of which the one nearest to its bound is shown."""

    def __init__(self) -> None:
        self._share, self.text = -1.0, "nothing was compared"

    def add(self, name: str, value: float, bound: float) -> None:
        """Fail unless ``value <= bound``."""
        text = at_most(name, value, bound)
        if value / bound > self._share:
            self._share, self.text = value / bound, text


def difference(ours: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected number."""
    ours, expected = (np.array(a.astype(mx.float32)) for a in (ours, expected))
    require(ours.shape == expected.shape, f"shape {ours.shape}, expected {expected.shape}")
    return float(np.abs(ours - expected).max() / max(1e-6, np.abs(expected).max()))


def need_gpu() -> None:
    """Skip an item where MLX has no GPU, or isn't to use it."""
    if not has_gpu():
        raise Skipped("this MLX has no GPU")
    if mx.default_device() != mx.gpu:
        raise Skipped("--device cpu")


def need_time(quick: bool) -> None:
    """Skip an item of a quick run."""
    if quick:
        raise Skipped("not with --quick")


def unit(precision: str) -> float:
    """Rounding of an activation, or of a product's input, on the default device."""
    tf32 = mx.default_device() == mx.gpu and has_tf32()
    return max(UNIT[precision], TF32) if tf32 else UNIT[precision]


def has_tf32() -> bool:
    """Whether the GPU's float32 products may round their inputs to TF32: CUDA's, and from M5 on.

    ``MLX_ENABLE_TF32=0`` ends it. A Mac's architecture is ``applegpu_g``, a generation (17: M5) and
    a letter; one of another form may be newer.
    """
    if os.environ.get("MLX_ENABLE_TF32") == "0":
        return False
    if not mx.metal.is_available():
        return True
    generation = re.match(r"applegpu_g(\d+)", str(mx.device_info(mx.gpu)["architecture"]))
    return not generation or int(generation[1]) >= 17


@contextmanager
def on(device: mx.Device) -> Iterator[None]:
    """Make a device the default one meanwhile."""
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
    """A trainer of an environment, closed at the end.

    Args:
        options: of the configuration; they win over ``base``.
        env: the environment.
        base: options of the configuration.
        wrap: what becomes of the environments before the trainer gets them.
        weights: initial ones.
    """
    settings = config.load(env, [*base, *options])
    with vec.make(settings, rollout_cores(settings)) as environments:
        yield Run.open(settings, wrap(environments), weights=weights).trainer


def apart(runs: Sequence[Logs], others: Sequence[Logs]) -> float:
    """The largest difference between the losses of two runs, relative to the number or 1."""
    require(len(runs) == len(others), f"{len(runs)} epochs and {len(others)}")
    differences = []
    for one, other in zip(runs, others, strict=True):
        shared = {name for name in one.keys() & other.keys() if name.startswith("loss/")}
        require("loss/total" in shared, f"an epoch without losses: {one or other}")
        for name in shared - {"loss/first_ratio_error"}:
            differences.append(abs(one[name] - other[name]) / max(1.0, abs(other[name])))
    return float(np.max(differences))  # NaN if one is


def repeatable() -> float:
    """How far two runs of the same work may be apart: 0 on a CPU."""
    return 0.0 if mx.default_device() == mx.cpu else REORDERED


def flat(tree: Any) -> np.ndarray:
    """All numbers of a tree of arrays, float32."""
    return np.concatenate([np.array(a.astype(mx.float32)).ravel() for _, a in named(tree)])
