"""Training on one rollout: K minibatches, submitted one after the other, read at the end.

The device computes a minibatch while Python builds the next one. No more than two are under way:
each holds its activations.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.ops import take_rows
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import loss, precision
from puffer_mlx.ppo.update import Executables, Fields
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import LEARNING
from puffer_mlx.system.devices import building, for_gpu
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.placement import Placement
from puffer_mlx.trees import named

AHEAD = 2  # minibatches under way at most
_CHOSEN = {"actions", "logprobs", "values"}  # what the policy, not the environment, made


@dataclass(frozen=True)
class TrainState:
    """What training changes: weights, the optimizer's state and loss scaling's, trees of arrays."""

    weights: Any
    optimizer: Any
    scaler: precision.Scaler

    def arrays(self) -> tuple[Any, Any, precision.Scaler]:
        """All of it."""
        return self.weights, self.optimizer, self.scaler


@dataclass(frozen=True)
class Scheduled:
    """An epoch's scheduled numbers, scalar arrays."""

    lr: mx.array
    ent_coef: mx.array
    beta: mx.array  # of the priorities


class Record(NamedTuple):
    """What is read of a minibatch."""

    counted: float  # 0 or 1
    finite_advantages: float
    metrics: list[float]


class Learner:
    """Trains on rollouts.

    Args:
        config: a valid configuration.
        policy: what is trained.
        run: its compiled functions.
        placement: where the policy acts and is trained.
        lane: gets the phases ``train_*``.

    Attributes:
        fault: why not one minibatch has counted so far; None if one did.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        run: Executables,
        placement: Placement,
        lane: PhaseTimer,
    ) -> None:
        self.config, self.policy, self.run, self.lane = config, policy, run, lane
        self.placement = placement
        self.fault: UserError | None = None
        self._counted = False  # a minibatch
        # A segment's training starts from a zero state. If its rollout did too, and by the weights
        # that are trained, the first minibatch's ratios are 1 but for rounding.
        carries = not config.base.reset_state and bool(named(policy.initial_state(1)))
        self._warm, self._extra = False, 0.0
        self._comparable = not carries and not placement.overlap

    def train(
        self,
        rollout: Rollout,
        before: TrainState,
        uniforms: mx.array,
        numbers: Scheduled,
        sampled: bool,
        checked: bool,
    ) -> tuple[TrainState, dict[str, float], float]:
        """K minibatches.

        Args:
            rollout: what to train on; not rewritten before this returns.
            before: what to begin with.
            uniforms: (K, S) in (0, 1], which rows are drawn by.
            numbers: the epoch's.
            sampled: evaluate phase by phase, to find each one's share of the time.
            checked: find the first minibatch's deviation though it takes a forward pass.

        Returns:
            What it became, evaluated; the losses, means over the minibatches that counted; and the
            seconds that sampling took in addition.

        Raises:
            UserError: too many minibatches in a row weren't finite, or weights aren't any more.
        """
        self._extra = 0.0
        fields = self._fields(rollout, sampled)
        values, now = fields["values"], before
        with building:
            ratios, draws = mx.ones_like(values), list(uniforms)
        records: list[mx.array] = []  # of each minibatch: metrics, whether it counted, finiteness
        first: mx.array | None = None
        for k in range(len(draws)):
            adv = self.run.targets(fields, values, ratios)
            self._mark(sampled, "train_advantage", adv)
            rows, batch = self.run.draw(fields, adv, values, draws[k], numbers.beta)
            self._mark(sampled, "train_priorities", rows, batch)
            minibatch = self.run.gather(fields, rows)
            self._mark(sampled, "train_gather", minibatch)
            forward = self._measure_forward(now, minibatch) if sampled and k == 0 else 0.0
            grads, metrics, new_ratios, new_values = self.run.gradients(
                now.weights, *minibatch, batch, numbers.ent_coef, now.scaler["scale"]
            )
            self._mark_gradients(sampled, forward, grads, metrics, new_ratios, new_values)
            weights, optimizer, scaler, ok = self.run.optimise(
                now.weights, now.optimizer, now.scaler, grads, metrics, numbers.lr
            )
            self._mark(sampled, "train_optimizer", weights, optimizer, scaler)
            if k == 0:
                first = self._first_ratios(rollout, fields, rows, minibatch, new_ratios, checked)
            values, ratios = self.run.write_back(values, ratios, rows, new_values, new_ratios, ok)
            self._mark(sampled, "train_write_back", values, ratios)
            now = TrainState(weights, optimizer, scaler)
            with building:
                finite = mx.isfinite(mx.sum(adv))
                flags = mx.stack([ok, finite]).astype(mx.float32)
                records.append(mx.concatenate([flags, metrics]))
            mx.async_eval(weights, optimizer, scaler, values, ratios, records[-1])
            if k >= AHEAD:
                mx.eval(records[k - AHEAD])
        return now, self._losses(rollout, now, records, first), self._extra

    @property
    def _from_host(self) -> bool:
        """Whether rollouts are the host's that this device reads best after one copy."""
        return self.placement.rollout != self.placement.learner == mx.gpu

    # ---- what is read of a rollout ---------------------------------------------------------------

    def _fields(self, rollout: Rollout, sampled: bool) -> Fields:
        """The arrays as the learner's device reads them, log-probabilities as it computes them.

        Devices and types round differently, and the policy's ratios should tell what training
        changed. So those that acted elsewhere are computed again, by the weights that acted, from
        the recurrent states that the rollout began with.
        """
        fields = dict(rollout.buffer.fields)
        if self._from_host:
            with building:
                fields = for_gpu(fields)
            self._mark(sampled, "train_copy", fields)
        if self.placement.away:
            fields["logprobs"] = self._logprobs(rollout, fields)
            self._mark(sampled, "train_recompute", fields["logprobs"])
        return fields

    def _logprobs(self, rollout: Rollout, fields: Fields) -> mx.array:
        """Log-probabilities (T, N) of all actions, a minibatch's number of segments at a time."""
        N, S = fields["actions"].shape[1], self.config.segments
        states, parts = self._first_states(rollout), []
        for begin in range(0, N, S):
            first = max(0, min(begin, N - S))  # equal sizes: other ones are compiled again
            with building:
                rows = mx.arange(first, min(first + S, N), dtype=mx.int32)
            found = self._behaviour(rollout, states, rows, self.run.gather(fields, rows))
            with building:
                parts.append(found[:, begin - first :])
            mx.async_eval(parts[-1])
        with building:
            return mx.concatenate(parts, axis=1)

    def _first_states(self, rollout: Rollout) -> Any:
        """Recurrent states (N, ...) of all agents when the rollout began."""
        with building:
            states = tree_map(lambda *groups: mx.concatenate([*groups]), *rollout.start.states)
            return for_gpu(states) if self._from_host else states

    def _behaviour(
        self, rollout: Rollout, states: Any, rows: mx.array, minibatch: tuple
    ) -> mx.array:
        """Log-probabilities (T, S) of rows by the weights and from the states that acted."""
        with building:
            states = tree_map(lambda state: mx.take(state, rows, axis=0), states)
        return self.run.logprobs(rollout.start.weights, *minibatch, states)

    def _first_ratios(
        self,
        rollout: Rollout,
        fields: Fields,
        rows: mx.array,
        minibatch: tuple,
        new_ratios: mx.array,
        checked: bool,
    ) -> mx.array | None:
        """How far the first minibatch's ratios are from 1 at most, under the weights that acted.

        None where that takes a forward pass of its own, unless ``checked``.
        """
        if not self._comparable:
            if not checked:
                return None
            acted = self._behaviour(rollout, self._first_states(rollout), rows, minibatch)
            with building:
                T = acted.shape[0]
                new_ratios = mx.exp(acted - take_rows(fields["logprobs"], rows, T))
        with building:
            error = mx.max(mx.abs(new_ratios - 1))
        mx.async_eval(error)
        return error

    # ---- where the time goes ---------------------------------------------------------------------

    def _mark(self, sampled: bool, phase: str, *arrays: Any) -> None:
        if sampled:
            mx.eval(arrays)
            self.lane.lap(phase, LEARNING)

    def _mark_gradients(self, sampled: bool, forward: float, *arrays: Any) -> None:
        """Charge both passes; ``forward`` is the seconds of the first, where it was measured."""
        began = time.perf_counter()
        self._mark(sampled, "train_backward", *arrays)
        if forward:
            backward = max(0.0, time.perf_counter() - began - forward)
            parts = {"train_forward": forward, "train_backward": backward}
            self.lane.part("train_backward", parts)

    def _measure_forward(self, now: TrainState, minibatch: tuple) -> float:
        """Seconds that the forward pass of a minibatch takes alone; they are nobody's."""
        began = time.perf_counter()
        if not self._warm:
            self._forward(now, minibatch)  # compiles
            self._warm = True
        seconds = self._forward(now, minibatch)
        self._extra += time.perf_counter() - began
        self.lane.start()
        return seconds

    def _forward(self, now: TrainState, minibatch: tuple) -> float:
        began = time.perf_counter()
        with building:
            state = self.policy.initial_state(minibatch[0].shape[1])
        mx.eval(self.run.logprobs(now.weights, *minibatch, state))
        return time.perf_counter() - began

    # ---- what is reported ------------------------------------------------------------------------

    def _losses(
        self, rollout: Rollout, now: TrainState, records: list[mx.array], first: mx.array | None
    ) -> dict[str, float]:
        with building:  # a finite gradient can still move weights beyond what float32 holds
            sound = [mx.isfinite(array).all() for _, array in named([now.weights, now.optimizer])]
        mx.eval(now.weights, now.optimizer, now.scaler, records, first, sound)
        if not all(flag.item() for flag in sound):
            raise self._overflown(now)
        rows = (record.tolist() for record in records)
        table = [Record(*row[:2], row[2:]) for row in rows]  # type: ignore
        state = {name: float(array.item()) for name, array in now.scaler.items()}  # type: ignore
        if state["longest"] >= precision.TOLERATED:
            record = next(record for record in table if not record.counted)
            words = f"{precision.TOLERATED} minibatches in a row were not finite"
            raise self._not_finite(words, rollout, record)
        counted = [record.metrics for record in table if record.counted]
        if counted:
            self._counted, self.fault = True, None
        elif not self._counted:
            words = "nothing was learned: not one minibatch was finite"
            self.fault = self._not_finite(words, rollout, table[0])
        losses = {
            name: sum(column) / len(counted)
            for name, column in zip(loss.METRICS, zip(*counted, strict=True), strict=False)
        }
        losses["skipped_steps"] = state["skipped"]
        if self.config.train.precision == "fp16":
            losses["scale"] = state["scale"]
        if first is not None and math.isfinite(error := float(first.item())):  # type: ignore
            losses["first_ratio_error"] = error
        return losses

    def _overflown(self, now: TrainState) -> UserError:
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
            f" {self.config.train.learning_rate:g}",
            "lower train.learning_rate; the last good weights are kept",
        )

    def _not_finite(self, words: str, rollout: Rollout, record: Record) -> UserError:
        """The error after minibatches that weren't finite; names the phase of this one."""
        with building:
            bad = [
                name
                for name, array in rollout.buffer.fields.items()
                if array is not None and not mx.isfinite(array).all().item()
            ]
        hint, kept = "lower train.learning_rate", "the last good weights are kept"
        if bad and not {*bad} - _CHOSEN:
            phase, kept = "the policy's step", "begin with weights from before they grew too large"
        elif bad:
            phase, hint = "the rollout", f"its {', '.join(bad)} aren't: check the environment"
        elif not record.finite_advantages:
            phase, hint = "the advantages", "lower train.gamma or train.gae_lambda"
        elif not all(math.isfinite(value) for value in record.metrics):
            phase = "the forward pass"
        else:
            phase = "the backward pass"
        if self.config.train.precision != "fp32" and phase.endswith("pass"):
            hint += ", or --train.precision fp32"
        return UserError(
            f"{words}, first in {phase}",
            f"{hint}; {kept}",
        )
