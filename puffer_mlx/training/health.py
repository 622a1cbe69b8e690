"""What an epoch's minibatches came to: the losses, and whether training may go on."""

import math
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import loss, precision
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.train_state import TrainState
from puffer_mlx.trees import named

AHEAD = 2  # minibatches under way at most
CHOSEN = {"actions", "logprobs", "values"}  # of a rollout: what the policy made


class Record(NamedTuple):
    """What is read of a minibatch."""

    counted: float  # 0 or 1
    finite_advantages: float
    metrics: list[float]


class Submitted:
    """An epoch's minibatches, submitted one after the other and read at the end.

    The device computes a minibatch while Python builds the next one. No more than two are under
    way: each holds its activations.
    """

    def __init__(self) -> None:
        self._records: list[mx.array] = []  # of each: whether it counted, finiteness, metrics

    def submit(
        self, now: TrainState, values: mx.array, ratios: mx.array, adv: Any, metrics: Any, ok: Any
    ) -> None:
        """Have a minibatch computed; waits for the last but one before it."""
        with building:
            finite = mx.isfinite(mx.sum(adv))
            flags = mx.stack([ok, finite]).astype(mx.float32)
            record = mx.concatenate([flags, metrics])
        mx.async_eval(*now.arrays(), values, ratios, record)
        self._records.append(record)
        if len(self._records) > AHEAD:
            mx.eval(self._records[-1 - AHEAD])

    def read(self, *others: Any) -> list[Record]:
        """The minibatches' records, once all of them and ``others`` are evaluated."""
        mx.eval(*others, self._records)
        rows = (record.tolist() for record in self._records)
        return [Record(*row[:2], row[2:]) for row in rows]  # type: ignore


class Health:
    """Judges what training made, epoch after epoch.

    Args:
        config: a valid configuration.

    Attributes:
        fault: why not one minibatch has counted so far; None if one did.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.fault: UserError | None = None
        self._counted = False  # a minibatch

    def judge(self, rollout: Rollout, now: TrainState, submitted: Submitted) -> dict[str, float]:
        """Wait for an epoch's minibatches.

        Args:
            rollout: what was trained on.
            now: what it made.
            submitted: the epoch's.

        Returns:
            The losses, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row weren't finite, or weights aren't any more.
        """
        with building:  # a finite gradient can still move weights beyond what float32 holds
            sound = [mx.isfinite(array).all() for _, array in named([now.weights, now.optimizer])]
        records = submitted.read(*now.arrays(), sound)
        if not all(flag.item() for flag in sound):
            raise overflown(now, self.config)
        state = {name: float(array.item()) for name, array in now.scaler.items()}  # type: ignore
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
            for name, column in zip(loss.METRICS, zip(*counted, strict=True), strict=False)
        }
        losses["skipped_steps"] = state["skipped"]
        if self.config.train.precision == "fp16":
            losses["scale"] = state["scale"]
        return losses


def overflown(now: TrainState, config: Config) -> UserError:
    """The error after an update that made weights, or the optimizer's state, infinite."""
    trees = {f"the {name} of ": tree for name, tree in now.optimizer.items()}
    trees = {"": now.weights, **trees}
    name = next(
        f"{whose}{name}"
        for whose, tree in trees.items()
        for name, array in named(tree)
        if not mx.isfinite(array).all().item()
    )
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
    elif not record.finite_advantages:
        phase, hint = "the advantages", "lower train.gamma or train.gae_lambda"
    elif not all(math.isfinite(value) for value in record.metrics):
        phase = "the forward pass"
    else:
        phase = "the backward pass"
    if config.train.precision != "fp32" and phase.endswith("pass"):
        hint += ", or --train.precision fp32"
    return UserError(f"{words}, first in {phase}", f"{hint}; {kept}")
