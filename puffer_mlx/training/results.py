"""Results of an epoch's minibatches, and the check that they are finite."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

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
from puffer_mlx.trees import named

IN_FLIGHT = 2  # most minibatches queued on the device
CHOSEN = {"actions", "logprobs", "values"}  # fields of a rollout that the policy computes


class MinibatchResult(NamedTuple):
    """Results of one minibatch, or of k that were computed at once."""

    ok: mx.array
    """True or 1 if the minibatch counted: a scalar, or (k,)."""
    metrics: mx.array
    """(7,), or (k, 7)."""
    advantages: mx.array
    """(T, N), or those of the minibatch's rows."""


class Results:
    """An epoch's results: minibatches are submitted as they come and read together at the end.

    The device computes a minibatch while Python builds the next one. At most ``IN_FLIGHT`` wait,
    since each holds its activations.

    Args:
        traced: an epoch is being compiled, so nothing is submitted.

    Attributes:
        minibatches: results of each minibatch, or one entry for all.
        first_ratios: ratios of the first minibatch (T, S); None: not known.
        packed: all numbers that the host reads, as one float32 array.
    """

    def __init__(self, traced: bool = False) -> None:
        self.minibatches: list[MinibatchResult] = []
        self.first_ratios: mx.array | None = None
        self.packed: mx.array | None = None
        self._scaler: list[str] = []
        self._has_ratios = False
        self._traced = traced

    @classmethod
    def of_graph(
        cls,
        packed: mx.array,
        minibatches: Sequence[Sequence[mx.array]],
        state: TrainState,
        has_ratios: bool,
    ) -> "Results":
        """Return the results that a compiled epoch has made.

        Args:
            packed: Packed results: see ``pack``.
            minibatches: Fields of the MinibatchResult of each minibatch.
            state: State after the epoch.
            has_ratios: True if ``packed`` contains ratios.
        """
        results = cls()
        results.minibatches = [MinibatchResult(*arrays) for arrays in minibatches]
        results.packed, results._has_ratios = packed, has_ratios
        results._scaler = [*state.scaler]
        return results

    @property
    def counted(self) -> list[mx.array]:
        """The flag ``ok`` of each minibatch, or one array for all of them."""
        return [one.ok for one in self.minibatches]

    @property
    def count(self) -> int:
        """Number of minibatches submitted so far."""
        return len(self.minibatches)

    def add(
        self, now: TrainState, adv: mx.array, metrics: mx.array, ok: mx.array, *others: mx.array
    ) -> None:
        """Submit a minibatch's results, and other arrays to compute with them.

        Waits for the minibatch ``IN_FLIGHT`` before this one.
        """
        self.minibatches.append(MinibatchResult(ok, metrics, adv))
        if self._traced:
            return
        mx.async_eval(*now, *others, metrics, ok)
        if len(self.minibatches) > IN_FLIGHT:
            before = self.minibatches[-1 - IN_FLIGHT]
            mx.eval(before.ok, before.metrics)

    def pack(self, now: TrainState, ratios: mx.array | None) -> mx.array:
        """Pack what the host reads into one array: each array that it reads costs a GPU 50 us.

        Args:
            now: the state after the epoch.
            ratios: ratios of the first minibatch, if they are to be compared with 1.
        """
        # Finite gradients can still move weights beyond what float32 holds.
        trained = [array for _, array in named([now.weights, now.optimizer])]
        arrays = [sums_of_squares(trained), *now.scaler.values()]
        if ratios is not None:
            arrays += [mx.max(ratios), mx.min(ratios)]
        arrays += [array for one in self.minibatches for array in (one.ok, one.metrics)]
        packed, _ = pack(arrays)
        self.packed = packed
        self._scaler, self._has_ratios = [*now.scaler], ratios is not None
        return packed

    def read(self) -> "Numbers":
        """Return the packed numbers, once they are computed."""
        assert self.packed is not None
        left: list[float] = self.packed.tolist()  # type: ignore
        tail = len(self._scaler) + 2 * self._has_ratios
        for one in self.minibatches:
            tail += one.ok.size + one.metrics.size
        numbers = iter(left)
        squares = list(islice(numbers, len(left) - tail))
        scaler = dict(zip(self._scaler, numbers, strict=False))
        ratios = list(islice(numbers, 2 * self._has_ratios))
        rows: list[Row] = []
        for one in self.minibatches:
            size = one.metrics.size // one.ok.size
            for ok in list(islice(numbers, one.ok.size)):  # these precede their metrics
                rows.append(Row(ok, list(islice(numbers, size)), one.advantages))
        return Numbers(squares, scaler, ratios, rows)


class Row(NamedTuple):
    """One minibatch's numbers."""

    counted: float
    """0 or 1."""
    metrics: list[float]
    advantages: mx.array
    """Not read, unless something has to be explained."""


class Numbers(NamedTuple):
    """The numbers of ``Results.packed``."""

    squares: list[float]
    """Sums of squares: all finite if all weights and the optimizer's state are."""
    scaler: dict[str, float]
    ratios: list[float]
    """The first minibatch's largest and smallest ratio, or nothing."""
    rows: list[Row]


class Health:
    """Check that the results of training are finite, epoch by epoch.

    Args:
        config: A valid configuration.
        metrics: Names of the metrics.

    Attributes:
        fault: Error that explains why no minibatch has counted so far, or None.
    """

    def __init__(self, config: Config, metrics: Sequence[str] = METRICS) -> None:
        self.config, self._metrics = config, metrics
        self.fault: UserError | None = None
        self._counted = False  # a minibatch did

    def check(self, rollout: Rollout, now: TrainState, results: Results) -> dict[str, float]:
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
        squares, scaler, ratios, rows = results.read()
        if not all(map(math.isfinite, squares)) and (name := not_finite_of(now)):
            raise overflown(name, self.config)
        if scaler["longest"] >= precision.TOLERATED:
            row = next(row for row in rows if not row.counted)
            words = f"{precision.TOLERATED} minibatches in a row were not finite"
            raise not_finite(words, rollout, row, self.config)
        counted = [row.metrics for row in rows if row.counted]
        if counted:
            self._counted, self.fault = True, None
        elif not self._counted:
            words = "nothing was learned: not one minibatch was finite"
            self.fault = not_finite(words, rollout, rows[0], self.config)
        losses = {
            name: sum(column) / len(counted)
            for name, column in zip(self._metrics, zip(*counted, strict=True), strict=False)
        }
        losses["skipped_steps"] = scaler["skipped"]
        if self.config.train.target_kl:  # the epoch ended at the first minibatch beyond it
            losses["minibatches"] = len(counted)
        if self.config.train.precision == "fp16":
            losses["scale"] = scaler["scale"]
        if ratios:
            error = float(np.abs(np.array(ratios, np.float32) - np.float32(1)).max())
            if math.isfinite(error):
                losses["first_ratio_error"] = error
        return losses


def not_finite_of(now: TrainState) -> str | None:
    """Return the name of the first weight or optimizer array that isn't finite, or None."""
    trees = {f"the {name} of ": tree for name, tree in now.optimizer.items()}
    trees = {"": now.weights, **trees}
    return next(
        (
            f"{whose}{name}"
            for whose, tree in trees.items()
            for name, array in named(tree)
            if not mx.isfinite(array).all().item()
        ),
        None,
    )


def overflown(name: str, config: Config) -> UserError:
    """Return the error for an update that made weights, or the optimizer's state, infinite."""
    return UserError(
        f"training made {name} infinite, with a train.learning_rate of"
        f" {config.train.learning_rate:g}",
        "lower train.learning_rate; the last good weights are kept",
    )


def not_finite(words: str, rollout: Rollout, row: Row, config: Config) -> UserError:
    """Return the error for minibatches that weren't finite; it names the phase of this one."""
    with building:
        bad = [
            name
            for name, array in rollout.buffer.fields.items()
            if array is not None and not mx.isfinite(array).all().item()
        ]
    hint, kept = "lower train.learning_rate", "the last good weights are kept"
    if bad and not {*bad} - CHOSEN:
        phase, kept = "the policy's step", "begin with weights from before they grew too large"
    elif bad:
        phase, hint = "the rollout", f"its {', '.join(bad)} aren't: check the environment"
    elif not finite_advantages(row):
        phase, hint = "the advantages", "lower train.gamma or train.gae_lambda"
    elif not all(math.isfinite(value) for value in row.metrics):
        phase = "the forward pass"
    else:
        phase = "the backward pass"
    if config.train.precision != "fp32" and phase.endswith("pass"):
        hint += ", or --train.precision fp32"
    return UserError(f"{words}, first in {phase}", f"{hint}; {kept}")


def finite_advantages(row: Row) -> bool:
    """Return True if all advantages of a minibatch are finite."""
    with building:
        finite = mx.isfinite(mx.sum(row.advantages))
    return bool(finite.item())
