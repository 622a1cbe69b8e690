"""What an epoch's minibatches came to: the losses, and whether training may go on."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.ops import pack, sums_of_squares
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.ppo.update import TrainState
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.trees import named

AHEAD = 2  # minibatches under way at most
CHOSEN = {"actions", "logprobs", "values"}  # of a rollout: what the policy made


class Minibatch(NamedTuple):
    """The arrays of a minibatch under way, or of k; they are read at the epoch's end."""

    ok: mx.array  # whether it counted: a scalar, a bool or 0 or 1; or (k,)
    metrics: mx.array  # (7,), or (k, 7)
    advantages: mx.array  # (T, N), or of its own rows


class Record(NamedTuple):
    """A minibatch's numbers, read at the epoch's end."""

    counted: float  # 0 or 1
    metrics: list[float]
    advantages: mx.array

    def finite_advantages(self) -> bool:
        """Whether all advantages were finite."""
        with building:
            finite = mx.isfinite(mx.sum(self.advantages))
        return bool(finite.item())


class Submitted:
    """An epoch's minibatches, submitted one after the other and read at the end.

    The device computes a minibatch while Python builds the next one. No more than two are under
    way: each holds its activations.

    Args:
        traced: whether an epoch is being compiled, so that nothing can be computed yet.
    """

    def __init__(self, traced: bool = False) -> None:
        self._minibatches: list[Minibatch] = []
        self._traced = traced

    @property
    def count(self) -> int:
        """How many minibatches were submitted so far."""
        return len(self._minibatches)

    @property
    def counted(self) -> list[mx.array]:
        """Whether each counted: scalars, bool or numbers that are 0 or 1."""
        return [one.ok for one in self._minibatches]

    def submit(
        self, now: TrainState, adv: mx.array, metrics: mx.array, ok: mx.array, *others: mx.array
    ) -> None:
        """Have a minibatch computed, and others with it; waits for the last but one before it."""
        self._minibatches.append(Minibatch(ok, metrics, adv))
        if self._traced:
            return
        mx.async_eval(*now.arrays(), *others, metrics, ok)
        if len(self._minibatches) > AHEAD:
            before = self._minibatches[-1 - AHEAD]
            mx.eval(before.ok, before.metrics)

    def ask(self, others: dict[str, mx.array]) -> "Asked":
        """What ``read`` reads: other small arrays, float32 or int32, and the minibatches'."""
        arrays = [array for one in self._minibatches for array in (one.ok, one.metrics)]
        packed, _ = pack([*others.values(), *arrays])  # each that is read costs a GPU 50 us
        sizes = {name: array.size for name, array in others.items()}
        return Asked(packed, sizes, self._minibatches)


class Asked(NamedTuple):
    """What there is to know of an epoch."""

    packed: mx.array
    others: dict[str, int]  # sizes
    minibatches: list[Minibatch]

    def read(self) -> tuple[list[Record], dict[str, list[float]]]:
        """The minibatches' records and the other arrays' numbers, once all of it is computed."""
        left = iter(self.packed.tolist())  # type: ignore
        numbers = {name: list(islice(left, size)) for name, size in self.others.items()}
        records: list[Record] = []
        for one in self.minibatches:
            counted = list(islice(left, one.ok.size))
            each = one.metrics.size // one.ok.size
            records += [Record(ok, list(islice(left, each)), one.advantages) for ok in counted]
        return records, numbers


class Health:
    """Judges what training made, epoch after epoch.

    Args:
        config: a valid configuration.
        metrics: names of the losses.

    Attributes:
        fault: why not one minibatch has counted so far; None if one did.
    """

    def __init__(self, config: Config, metrics: Sequence[str] = METRICS) -> None:
        self.config, self._metrics = config, metrics
        self.fault: UserError | None = None
        self._counted = False  # a minibatch

    def ask(self, now: TrainState, submitted: Submitted, ratios: mx.array | None = None) -> Asked:
        """What ``judge`` reads of an epoch, not evaluated.

        Args:
            now: what it made.
            submitted: its minibatches.
            ratios: of the first one, if they are to be compared with 1.
        """
        # a finite gradient can still move weights beyond what float32 holds
        trained = [array for _, array in named([now.weights, now.optimizer])]
        others = {"squares": sums_of_squares(trained), **now.scaler}
        if ratios is not None:
            others |= {"largest ratio": mx.max(ratios), "least ratio": mx.min(ratios)}
        return submitted.ask(others)

    def judge(self, rollout: Rollout, now: TrainState, asked: Asked) -> dict[str, float]:
        """Wait for an epoch's minibatches.

        Args:
            rollout: what was trained on.
            now: what it made.
            asked: what ``ask`` returned.

        Returns:
            The losses, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row weren't finite, or weights aren't any more.
        """
        mx.eval(*now.arrays(), asked.packed)
        records, numbers = asked.read()
        if not all(map(math.isfinite, numbers.pop("squares"))) and (name := not_finite_of(now)):
            raise overflown(name, self.config)
        state = {name: number for name, (number,) in numbers.items()}
        if state["longest"] >= precision.TOLERATED:
            record = next(record for record in records if not record.counted)
            words = f"{precision.TOLERATED} minibatches in a row were not finite"
            raise not_finite(words, rollout, record, self.config)
        counted = [record.metrics for record in records if record.counted]
        if counted:
            self._counted, self.fault = True, None
        elif not self._counted:
            words = "nothing was learned: not one minibatch was finite"
            self.fault = not_finite(words, rollout, records[0], self.config)
        losses = {
            name: sum(column) / len(counted)
            for name, column in zip(self._metrics, zip(*counted, strict=True), strict=False)
        }
        losses["skipped_steps"] = state["skipped"]
        if self.config.train.target_kl:  # how many there were until one was too far away
            losses["minibatches"] = len(counted)
        if self.config.train.precision == "fp16":
            losses["scale"] = state["scale"]
        if "least ratio" in state:
            ratios = np.array([state["largest ratio"], state["least ratio"]], np.float32)
            if math.isfinite(error := float(np.abs(ratios - np.float32(1)).max())):
                losses["first_ratio_error"] = error
        return losses


def not_finite_of(now: TrainState) -> str | None:
    """The name of the first weight or optimizer array that isn't finite; None if all are."""
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
    """The error after an update that made weights, or the optimizer's state, infinite."""
    return UserError(
        f"training made {name} infinite, with a train.learning_rate of"
        f" {config.train.learning_rate:g}",
        "lower train.learning_rate; the last good weights are kept",
    )


def not_finite(words: str, rollout: Rollout, record: Record, config: Config) -> UserError:
    """The error after minibatches that weren't finite; names the phase of this one."""
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
    elif not record.finite_advantages():
        phase, hint = "the advantages", "lower train.gamma or train.gae_lambda"
    elif not all(math.isfinite(value) for value in record.metrics):
        phase = "the forward pass"
    else:
        phase = "the backward pass"
    if config.train.precision != "fp32" and phase.endswith("pass"):
        hint += ", or --train.precision fp32"
    return UserError(f"{words}, first in {phase}", f"{hint}; {kept}")
