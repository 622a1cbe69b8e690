"""Collect the results of an epoch's minibatches, and check that they are finite."""

import math
from collections.abc import Sequence
from itertools import islice

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.ops import sums_of_squares
from puffer_mlx.ops.pack import pack_arrays
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.ppo.update import TrainState
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.trees import leaves, named_arrays

MAX_IN_FLIGHT = 2  # minibatches that may be queued on the device
POLICY_FIELDS = {"actions", "logprobs", "values"}  # fields of a rollout that the policy computes


class EpochResults:
    """Results of an epoch's minibatches, submitted one by one and read when the epoch ends.

    The device computes a minibatch while Python builds the next one. At most ``MAX_IN_FLIGHT``
    are queued, because each of them stores activations.

    Args:
        traced: True while an epoch is compiled. Results are then not submitted.

    Attributes:
        minibatches: (flag, metrics (7,), advantages) of each minibatch. The flag is a scalar,
            true if the minibatch counted. Minibatches computed in one operation have a single entry
            with flags (K,) and metrics (K, 7).
        first_ratios: ratios of the first minibatch, (T, S). None until they are known.
        packed: all values that the host reads, as one float32 array.
        has_ratios: True if ``packed`` contains the largest and the smallest first ratio.

    Attributes that ``read`` sets:
        squares: sums of squares of the weights and the optimizer's state. They are finite if and
            only if all these arrays are, except for an overflow of a sum.
        scaler: state of loss scaling by name.
        ratios: the largest and the smallest first ratio; empty unless ``has_ratios``.
        counted: for each minibatch, 1 if it counted, else 0.
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
        self, state: TrainState, adv: mx.array, metrics: mx.array, ok: mx.array, *arrays: mx.array
    ) -> None:
        """Add a minibatch's results, and start computing them on the device.

        If more than ``MAX_IN_FLIGHT`` minibatches are queued, this waits for the oldest of them.

        Args:
            state: weights, optimizer state and loss scaling after the minibatch.
            adv: advantages.
            metrics: metrics of the loss.
            ok: scalar flag, true if the minibatch counted.
            arrays: other arrays to compute at the same time.
        """
        self.minibatches.append((ok, metrics, adv))
        if self._traced:
            return
        mx.async_eval(*state, *arrays, metrics, ok)
        if len(self.minibatches) > MAX_IN_FLIGHT:
            earlier_ok, earlier_metrics, _ = self.minibatches[-1 - MAX_IN_FLIGHT]
            mx.eval(earlier_ok, earlier_metrics)

    def pack(self, state: TrainState, ratios: mx.array | None) -> mx.array:
        """Pack all of an epoch's results that the host reads into one array.

        Reading an array from a GPU takes 50 us.

        Args:
            state: weights, optimizer state and loss scaling after the epoch.
            ratios: ratios of the first minibatch to compare with 1, or None.
        """
        # The sums show if weights or state are finite: finite gradients can still move weights
        # beyond the range of float32.
        squares = sums_of_squares(leaves([state.weights, state.optimizer]))
        arrays = [squares, *state.scaler.values()]
        if ratios is not None:
            arrays += [mx.max(ratios), mx.min(ratios)]
        for ok, metrics, _ in self.minibatches:
            arrays += [ok, metrics]
        packed, _ = pack_arrays(arrays)
        self.packed = packed
        self.has_ratios = ratios is not None
        return packed

    def read(self, scaler_names: Sequence[str]) -> None:
        """Unpack an epoch's computed results into this object's attributes.

        Args:
            scaler_names: names of the values of loss scaling.
        """
        assert self.packed is not None
        packed: list[float] = self.packed.tolist()  # type: ignore
        sizes = [ok.size + metrics.size for ok, metrics, _ in self.minibatches]
        ratio_count = 2 if self.has_ratios else 0
        # The order of ``pack``. The first values are the squares, whose number isn't stored.
        square_count = len(packed) - len(scaler_names) - ratio_count - sum(sizes)
        values = iter(packed)
        self.squares = list(islice(values, square_count))
        self.scaler = dict(zip(scaler_names, islice(values, len(scaler_names)), strict=True))
        self.ratios = list(islice(values, ratio_count))
        self.counted = []
        self.metrics = []
        for ok, metrics, _ in self.minibatches:
            self.counted += islice(values, ok.size)
            width = metrics.size // ok.size
            self.metrics += [list(islice(values, width)) for _ in range(ok.size)]


class FiniteCheck:
    """Check after each epoch that the results of training are finite.

    Args:
        config: a valid configuration.
        metrics: names of the metrics.

    Attributes:
        error: explains why no minibatch has been finite so far; None after a finite one.
    """

    def __init__(self, config: Config, metrics: Sequence[str] = METRICS) -> None:
        self.config = config
        self.error: UserError | None = None
        self._metrics = metrics
        self._any_counted = False

    def check(self, rollout: Rollout, state: TrainState, results: EpochResults) -> dict[str, float]:
        """Wait for an epoch's results and check that they are finite.

        Args:
            rollout: the rollout that was trained on.
            state: weights, optimizer state and loss scaling after the epoch.
            results: packed results of the epoch.

        Returns:
            The metrics, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row were not finite, or the weights or the
                optimizer's state became infinite or NaN.
        """
        mx.eval(*state, results.packed)
        results.read([*state.scaler])
        if not all(map(math.isfinite, results.squares)) and (name := first_not_finite(state)):
            raise UserError(
                f"training made {name} infinite, with a train.learning_rate of"
                f" {self.config.train.learning_rate:g}",
                "lower train.learning_rate; the last good weights are kept",
            )
        scaler = results.scaler
        if scaler["longest"] >= precision.MAX_SKIPPED_IN_A_ROW:
            words = f"{precision.MAX_SKIPPED_IN_A_ROW} minibatches in a row were not finite"
            raise not_finite_error(words, rollout, results, self.config)
        minibatches = zip(results.counted, results.metrics, strict=True)
        counted = [metrics for counts, metrics in minibatches if counts]
        if counted:
            self._any_counted = True
            self.error = None
        elif not self._any_counted:
            words = "nothing was learned: not one minibatch was finite"
            self.error = not_finite_error(words, rollout, results, self.config)
        columns = zip(*counted, strict=True)  # the values of each metric; empty if none counted
        losses = {
            name: sum(column) / len(counted)
            for name, column in zip(self._metrics, columns, strict=False)
        }
        losses["skipped_steps"] = scaler["skipped"]
        if self.config.train.target_kl:  # The epoch may have ended early.
            losses["minibatches"] = len(counted)
        if self.config.train.precision == "fp16":
            losses["scale"] = scaler["scale"]
        if results.ratios:
            error = float(np.abs(np.array(results.ratios, np.float32) - np.float32(1)).max())
            if math.isfinite(error):
                losses["first_ratio_error"] = error
        return losses


def first_not_finite(state: TrainState) -> str | None:
    """Return the name of the first weight or optimizer array that isn't finite, else None.

    Names are for messages, such as "encoder.weight" or "the momentum of encoder.weight".
    """
    trees = [("", state.weights)]
    trees += [(f"the {name} of ", tree) for name, tree in state.optimizer.items()]
    for prefix, tree in trees:
        for name, array in named_arrays(tree):
            if not mx.isfinite(array).all().item():
                return f"{prefix}{name}"
    return None


def not_finite_error(
    words: str, rollout: Rollout, results: EpochResults, config: Config
) -> UserError:
    """Return an error about minibatches that weren't finite, naming the phase where this began.

    Args:
        words: what happened, the first part of the message.
        rollout: the rollout that was trained on.
        results: results of the epoch, with at least one minibatch that didn't count.
        config: a valid configuration.
    """
    k = results.counted.index(0)
    with building:
        bad = [
            name
            for name, array in rollout.buffer.fields.items()
            if array is not None and not mx.isfinite(array).all().item()
        ]
        last = len(results.minibatches) - 1  # 0 if one operation computed the minibatches
        _, _, advantages = results.minibatches[min(k, last)]
        finite_advantages = mx.isfinite(mx.sum(advantages)).item()
    loss = config.train.loss
    hint = f"check the loss {loss}" if ":" in loss else "lower train.learning_rate"
    weights_hint = "the last good weights are kept"
    if bad and POLICY_FIELDS.issuperset(bad):
        phase = "the policy's step"
        weights_hint = "begin with weights from before they grew too large"
    elif bad:
        phase = "the rollout"
        hint = f"its {', '.join(bad)} aren't finite: check the environment"
    elif not finite_advantages:
        phase = "the advantages"
        hint = "lower train.gamma or train.gae_lambda"
    elif not all(map(math.isfinite, results.metrics[k])):
        phase = "the forward pass"
    else:
        phase = "the backward pass"
    if config.train.precision != "fp32" and phase.endswith("pass"):
        hint += ", or --train.precision fp32"
    return UserError(f"{words}, first in {phase}", f"{hint}; {weights_hint}")
