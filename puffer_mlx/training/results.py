"""Results of an epoch's minibatches, and the check that they are finite."""

import math
from collections.abc import Sequence
from itertools import islice

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.ops import sums_of_squares
from puffer_mlx.ops.pack import pack
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.ppo.update import TrainState
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.trees import leaves, named_arrays

IN_FLIGHT = 2  # most minibatches queued on the device
CHOSEN = {"actions", "logprobs", "values"}  # fields of a rollout that the policy computes


class EpochResults:
    """Results of an epoch's minibatches, which are submitted one by one and read at the end.

    The device computes a minibatch while Python builds the next one. At most ``IN_FLIGHT`` are
    queued, because each holds its activations.

    Args:
        traced: True while an epoch is compiled, so nothing is submitted.

    Attributes:
        minibatches: a flag, metrics (7,) and advantages of each minibatch. The flag is a scalar,
            true if the minibatch counted. Minibatches that were computed at once have one entry
            with flags (K,) and metrics (K, 7).
        first_ratios: ratios of the first minibatch (T, S). None before it is known.
        packed: all numbers that the host reads, as one float32 array.
        has_ratios: True if ``packed`` contains the largest and the smallest first ratio.

    Attributes that ``read`` sets:
        squares: sums of squares, all finite if all weights and the optimizer's state are finite.
        scaler: state of loss scaling by name.
        ratios: the largest and the smallest first ratio; empty if they aren't compared with 1.
        counted: 1 or 0 for each minibatch.
        metrics: metrics of each minibatch.
    """

    def __init__(self, traced: bool = False) -> None:
        self.minibatches: list[tuple[mx.array, mx.array, mx.array]] = []
        self.first_ratios: mx.array | None = None
        self.packed: mx.array | None = None
        self.squares: list[float] = []
        self.scaler: dict[str, float] = {}
        self.ratios: list[float] = []
        self.counted: list[float] = []
        self.metrics: list[list[float]] = []
        self.has_ratios = False
        self._traced = traced

    def add(
        self, now: TrainState, adv: mx.array, metrics: mx.array, ok: mx.array, *others: mx.array
    ) -> None:
        """Submit a minibatch's results, and other arrays to compute with them.

        Waits for the minibatch ``IN_FLIGHT`` before this one.
        """
        self.minibatches.append((ok, metrics, adv))
        if self._traced:
            return
        mx.async_eval(*now, *others, metrics, ok)
        if len(self.minibatches) > IN_FLIGHT:
            earlier_ok, earlier_metrics, _ = self.minibatches[-1 - IN_FLIGHT]
            mx.eval(earlier_ok, earlier_metrics)

    def pack(self, now: TrainState, ratios: mx.array | None) -> mx.array:
        """Pack all numbers that the host reads into one array: reading an array costs a GPU 50 us.

        Args:
            now: state after the epoch.
            ratios: ratios of the first minibatch, if they are to be compared with 1.
        """
        # Finite gradients can still move weights beyond what float32 holds.
        arrays = [sums_of_squares(leaves([now.weights, now.optimizer])), *now.scaler.values()]
        if ratios is not None:
            arrays += [mx.max(ratios), mx.min(ratios)]
        for ok, metrics, _ in self.minibatches:
            arrays += [ok, metrics]
        packed, _ = pack(arrays)
        self.packed = packed
        self.has_ratios = ratios is not None
        return packed

    def read(self, scaler_names: Sequence[str]) -> None:
        """Read the packed numbers, once they are computed.

        Args:
            scaler_names: names of the state of loss scaling.
        """
        assert self.packed is not None
        packed: list[float] = self.packed.tolist()  # type: ignore
        sizes = [ok.size + metrics.size for ok, metrics, _ in self.minibatches]
        after_squares = len(scaler_names) + 2 * self.has_ratios + sum(sizes)
        numbers = iter(packed)
        self.squares = list(islice(numbers, len(packed) - after_squares))
        self.scaler = dict(zip(scaler_names, islice(numbers, len(scaler_names)), strict=True))
        self.ratios = list(islice(numbers, 2 * self.has_ratios))
        self.counted = []
        self.metrics = []
        for ok, metrics, _ in self.minibatches:
            self.counted += islice(numbers, ok.size)
            width = metrics.size // ok.size
            self.metrics += [list(islice(numbers, width)) for _ in range(ok.size)]


class Health:
    """Check that the results of training are finite, epoch by epoch.

    Args:
        config: a valid configuration.
        metrics: names of the metrics.

    Attributes:
        fault: error that explains why no minibatch has counted so far, or None.
    """

    def __init__(self, config: Config, metrics: Sequence[str] = METRICS) -> None:
        self.config = config
        self.fault: UserError | None = None
        self._metrics = metrics
        self._any_counted = False

    def check(self, rollout: Rollout, now: TrainState, results: EpochResults) -> dict[str, float]:
        """Wait for an epoch's results and check them.

        Args:
            rollout: the rollout that was trained on.
            now: weights and optimizer state after the epoch.
            results: packed results of the epoch.

        Returns:
            The metrics, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row were not finite, or weights aren't any more.
        """
        mx.eval(*now, results.packed)
        results.read([*now.scaler])
        if not all(map(math.isfinite, results.squares)) and (name := not_finite_of(now)):
            raise UserError(
                f"training made {name} infinite, with a train.learning_rate of"
                f" {self.config.train.learning_rate:g}",
                "lower train.learning_rate; the last good weights are kept",
            )
        scaler = results.scaler
        if scaler["longest"] >= precision.TOLERATED:
            words = f"{precision.TOLERATED} minibatches in a row were not finite"
            raise not_finite(words, rollout, results, self.config)
        minibatches = zip(results.counted, results.metrics, strict=True)
        counted = [metrics for counts, metrics in minibatches if counts]
        if counted:
            self._any_counted = True
            self.fault = None
        elif not self._any_counted:
            words = "nothing was learned: not one minibatch was finite"
            self.fault = not_finite(words, rollout, results, self.config)
        losses = {
            name: sum(column) / len(counted)
            for name, column in zip(self._metrics, zip(*counted, strict=True), strict=False)
        }
        losses["skipped_steps"] = scaler["skipped"]
        if self.config.train.target_kl:  # the epoch ended at the first minibatch beyond it
            losses["minibatches"] = len(counted)
        if self.config.train.precision == "fp16":
            losses["scale"] = scaler["scale"]
        if results.ratios:
            error = float(np.abs(np.array(results.ratios, np.float32) - np.float32(1)).max())
            if math.isfinite(error):
                losses["first_ratio_error"] = error
        return losses


def not_finite_of(now: TrainState) -> str | None:
    """Return the name of the first weight or optimizer array that isn't finite, or None."""
    trees = {"": now.weights, **{f"the {name} of ": tree for name, tree in now.optimizer.items()}}
    for prefix, tree in trees.items():
        for name, array in named_arrays(tree):
            if not mx.isfinite(array).all().item():
                return f"{prefix}{name}"
    return None


def not_finite(words: str, rollout: Rollout, results: EpochResults, config: Config) -> UserError:
    """Return the error for minibatches that weren't finite, which names the first phase to fail.

    Args:
        words: text that describes the minibatches.
        rollout: the rollout that was trained on.
        results: results of the epoch. One minibatch at least didn't count.
        config: a valid configuration.
    """
    k = results.counted.index(0)
    with building:
        bad = [
            name
            for name, array in rollout.buffer.fields.items()
            if array is not None and not mx.isfinite(array).all().item()
        ]
        last = len(results.minibatches) - 1  # 0 if the minibatches were computed at once
        _, _, advantages = results.minibatches[min(k, last)]
        finite_advantages = mx.isfinite(mx.sum(advantages)).item()
    loss = config.train.loss
    hint = f"check the loss {loss}" if ":" in loss else "lower train.learning_rate"
    kept = "the last good weights are kept"
    if bad and not {*bad} - CHOSEN:
        phase = "the policy's step"
        kept = "begin with weights from before they grew too large"
    elif bad:
        phase = "the rollout"
        hint = f"its {', '.join(bad)} aren't: check the environment"
    elif not finite_advantages:
        phase = "the advantages"
        hint = "lower train.gamma or train.gae_lambda"
    elif not all(map(math.isfinite, results.metrics[k])):
        phase = "the forward pass"
    else:
        phase = "the backward pass"
    if config.train.precision != "fp32" and phase.endswith("pass"):
        hint += ", or --train.precision fp32"
    return UserError(f"{words}, first in {phase}", f"{hint}; {kept}")
