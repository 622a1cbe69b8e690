"""The trainer: collect a rollout, train on it, report. It does no input or output.

for logs in trainer:
    print(logs["SPS"], logs.get("env/score"))
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import psutil
from mlx.utils import tree_unflatten

from puffer_mlx.checkpoint import State
from puffer_mlx.config import Config
from puffer_mlx.config.memory_needs import refuse_training
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.ppo import optimizers, precision, priority, schedules
from puffer_mlx.ppo.update import compile_update
from puffer_mlx.profiling.phases import SAMPLE_EVERY, Profiler
from puffer_mlx.system.devices import building, kind
from puffer_mlx.system.mlx_cache import choose_cache_limit
from puffer_mlx.tracking.scores import SCORE, LastScores
from puffer_mlx.training.collector import Collector, Rollout
from puffer_mlx.training.learner import Learner, Scheduled, TrainState
from puffer_mlx.training.placement import place
from puffer_mlx.trees import named
from puffer_mlx.vec.base import VecEnv

Logs = dict[str, float]
RECORDED = 16  # agents whose last rollout a checkpoint keeps, for comparing exports


class Trainer:
    """Trains a policy; iterate over it, one epoch (N * T steps) at a time.

    Args:
        config: a valid configuration (``config.validate``).
        vec: environments with the configuration's agents and buffers; the caller closes them.
        policy: the one that the configuration describes if None.
        weights: initial weights; drawn from ``base.seed`` if None.
        like: of a run that goes on; where the configuration says ``auto``, as it was there.

    Attributes:
        epoch: epochs trained.
        global_step: environment steps trained on so far, summed over agents.
        stop: set to True (from a signal handler, say) to end the iteration after the current epoch.
        placement: where it acts and trains.
        lag: updates that the acting weights are behind with ``train.overlap``: 1, or 0 for a run
            whose results are those of one without, and whose halves take turns.
    """

    def __init__(
        self,
        config: Config,
        vec: VecEnv,
        policy: Policy | None = None,
        weights: Any = None,
        like: State | None = None,
    ) -> None:
        choose_cache_limit()
        self.config, self.vec = config, vec
        optimizer = optimizers.find(config.train.optimizer)
        refuse_training(config, vec.spec, optimizers.kept(optimizer))
        self.policy = policy or configured_policy(vec.spec, config)
        init, self._key = mx.random.split(mx.random.key(config.base.seed))
        weights = self.policy.init(init) if weights is None else weights
        scaler = precision.first_scaler(config.train.precision)
        self._learned = TrainState(weights, optimizer.init(weights), scaler)
        mx.eval(self._key, *self._learned.arrays())
        self.epoch, self.global_step, self.stop, self.lag = 0, 0, False, 1
        self.profiler = Profiler(bool(config.base.profile))
        run = compile_update(self.policy, config.train)
        numbers = like.numbers if like else {}
        self.placement = place(config, vec.spec, self.policy, run, weights, numbers)
        self._collector = Collector(
            config, vec, self.policy, run, self.placement, self.profiler.rollout
        )
        self._learner = Learner(config, self.policy, run, self.placement, self.profiler.train)
        self._acting: Any = None  # the next rollout's weights, where they aren't the newest
        self._current: Rollout | None = None  # collected, and not trained on yet
        self._draws: mx.array | None = None  # the key of its minibatches, once it is drawn
        self._scores = LastScores()
        self._started = time.perf_counter()
        self._process = psutil.Process()

    @property
    def weights(self) -> Any:
        """The policy's current weights."""
        return self._learned.weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        self._learned = replace(self._learned, weights=weights)

    @property
    def acts_in_c(self) -> bool:
        """Whether a rollout is one call of C, the policy's steps included."""
        return self._collector.acting.in_c

    @property
    def fault(self) -> UserError | None:
        """Why this has trained on nothing: not one minibatch was finite. None if one was."""
        return self._learner.fault

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(int(w.size) for _, w in named(self.weights))

    def __iter__(self) -> Iterator[Logs]:
        """Train to the end of the schedule or until ``stop``; one record for each epoch."""
        while self.epoch < self.config.epochs and not self.stop:
            yield self.step()

    def step(self) -> Logs:
        """One epoch: a rollout of N * T steps, then K minibatches on it.

        With ``train.overlap`` the next epoch's rollout is collected beside the minibatches. Nothing
        is under way any more when this returns or raises, and a rollout that was collected isn't
        lost: the next call goes on with it. A KeyboardInterrupt while this waits for the next
        rollout comes after the epoch: its record is lost, the epoch isn't.
        """
        began = time.perf_counter()
        self.profiler.begin(self.epoch)
        self.profiler.train.start()
        try:
            rollout = self._current = self._current or self._rollout()
            losses, seconds = self._train(rollout)
        finally:
            self._collector.settle()
        if not self.lag:
            self._begin_beside()
            self._collector.settle()
        if self.placement.overlap:
            self.profiler.rollout.lap("eval_idle")  # nobody else uses the lane now
        self.profiler.train.lap("train_wait" if self.placement.overlap else "train_misc")
        return self._logs(time.perf_counter() - began, rollout, seconds, losses)

    def evaluate(self) -> Iterator[Logs]:
        """Rollouts without training, as upstream after its last epoch.

        Until more than ``base.eval_episodes`` have ended, at most half as many as training epochs.
        Yields the environments' means since the evaluation began.
        """
        total: Logs = {}
        for _ in range(self.config.epochs // 2):
            if self.stop or total.get("env/n", 0) > self.config.base.eval_episodes:
                return
            try:
                logs = self._rollout().logs
            finally:
                self._collector.settle()
            self.global_step += self.config.batch_size
            total = _merge_means(total, _environment_logs(logs))
            yield {"agent_steps": self.global_step, **total}

    def state(self) -> State:
        """Everything that a later ``restore`` needs, with the weights, to go on identically.

        A rollout that isn't trained on yet is not in it, but what it began from; without overlap,
        what it ended with, since that is where the environments are.
        """
        begun = self._current.start if self._current else self._collector.begun
        begun = begun if self.placement.overlap else None
        environments = begun.environments if begun else self.vec.state()
        buffer = self._collector.buffer
        arrays = {
            **optimizers.stored(self._learned.optimizer),
            "scaler": self._learned.scaler,
            "key": begun.key if begun else self._key,
            "recurrent": begun.states if begun else self._collector.states,
            "carry": begun.buffer.carry(0) if begun else buffer.carry(),
            "recorded": buffer.observations[: buffer.horizon, :RECORDED],
        }
        acting = begun.weights if begun else self._acting
        if acting is not None and acting is not self.weights:
            arrays["acting"] = acting
        if environments is not None:
            arrays["environments"] = mx.array(environments)
        if (scores := self._scores.state()) is not None:
            arrays["scores"] = mx.array(scores)
        numbers = {
            "epoch": self.epoch,
            "global_step": self.global_step,
            "uptime": time.perf_counter() - self._started,
            "rollout_device": kind(self.placement.rollout),
            "optimizer": self.config.train.optimizer,
        }
        return State(dict(named(arrays)), numbers)

    def restore(self, weights: Any, state: State) -> bool:
        """Go on where ``state`` was taken.

        Args:
            weights: the policy's, at that time.
            state: from a trainer with the same policy, agents and buffers.

        Returns:
            Whether the environments go on too; if not, they start new episodes.

        Raises:
            UserError: the state is of another configuration, or of another optimizer.
        """
        optimizers.refuse_another(self.config.train.optimizer, state.numbers)
        arrays = dict(state.arrays)
        environments = arrays.pop("environments", None)
        scores = arrays.pop("scores", None)
        going_on = environments is not None and self.vec.state() is not None
        learned, collector = self._learned, self._collector
        mine = {**optimizers.stored(learned.optimizer), "key": self._key, "scaler": learned.scaler}
        if going_on:
            mine |= {"recurrent": collector.states, "carry": collector.buffer.carry()}
        lags = self.placement.overlap and any(name.startswith("acting.") for name in arrays)
        if lags:
            mine["acting"] = learned.weights
        counted = ("epoch", "global_step", "uptime")
        wrong = [
            f"{name}: {arrays[name].shape if name in arrays else 'missing'}, expected {a.shape}"
            for name, a in named(mine)
            if name not in arrays or arrays[name].shape != a.shape
        ] + [
            f"{name}: {arrays[name].dtype}, expected {a.dtype}"
            for name, a in named(mine)
            if name in arrays and arrays[name].dtype != a.dtype
        ]
        wrong += [
            f"{name}: {state.numbers.get(name)!r}, expected a number"
            for name in counted
            if not isinstance(state.numbers.get(name), int | float)
        ]
        if wrong:
            raise UserError(
                f"the run's state is of another configuration: {'; '.join(wrong[:3])}",
                "go on with the run's own policy, vec.total_agents and vec.num_buffers",
            )
        if going_on:
            self.vec.restore(np.asarray(environments))
        found = tree_unflatten([(name, arrays[name]) for name, _ in named(mine)])
        optimizer = optimizers.recovered(found, learned.optimizer)
        self._learned = TrainState(weights, optimizer, found["scaler"])
        self._key, self._acting = found["key"], found["acting"] if lags else None
        self._current = self._draws = None
        self._scores.restore(None if scores is None else np.asarray(scores))
        collector.discard()
        if going_on:
            collector.restore(found.get("recurrent", collector.states), found["carry"])
        self.epoch, self.global_step = state.numbers["epoch"], state.numbers["global_step"]
        self._started = time.perf_counter() - state.numbers["uptime"]
        mx.eval(weights, arrays)
        return going_on

    def _rollout(self) -> Rollout:
        """The next rollout: the one that was begun beside the last training, or a new one."""
        if not self._collector.waiting:
            self._begin_rollout()
        rollout = self._collector.take()
        if self.placement.overlap:
            self.profiler.train.lap("train_wait")
        else:
            self.profiler.train.start()  # it was this thread's own work, in the other lane
        return rollout

    def _begin_rollout(self) -> None:
        weights = self.weights if self._acting is None else self._acting
        self._key, self._acting = self._collector.begin(weights, self._key), None
        self.profiler.train.lap("train_copy")  # of weights and noise, to where they are used

    def _begin_beside(self) -> None:
        """With overlap, begin the next epoch's rollout, if there is one and it isn't begun."""
        more = self.epoch + self.lag < self.config.epochs
        if self.placement.overlap and more and not self._collector.waiting:
            self._begin_rollout()

    def _train(self, rollout: Rollout) -> tuple[Logs, float]:
        """Train on a rollout, the next one beside it; the losses, and seconds."""
        began = time.perf_counter()
        sampled = self.profiler.samples(self.epoch)
        with building:
            numbers = self._scheduled()
            if self._draws is None:
                self._key, self._draws = mx.random.split(self._key)
            shape = (self.config.minibatches, self.config.segments)
            uniforms = 1 - mx.random.uniform(shape=shape, key=self._draws)  # in (0, 1]
        self.profiler.train.lap("train_misc")
        if self.lag:
            self._begin_beside()
        checked = self.epoch % SAMPLE_EVERY == 1
        learned, losses, extra = self._learner.train(
            rollout, self._learned, uniforms, numbers, sampled, checked
        )
        self._learned, self._current, self._draws = learned, None, None
        self.epoch += 1
        self.global_step += self.config.batch_size
        self.profiler.train.lap("train_misc")
        self.profiler.train.divide(sampled)
        return losses, time.perf_counter() - began - extra

    def _scheduled(self) -> Scheduled:
        """This epoch's learning rate, entropy coefficient and priority exponent."""
        train, epochs = self.config.train, self.config.epochs
        lr = schedules.learning_rate(train, self.epoch, epochs)
        ent = schedules.entropy_coefficient(train, self.epoch, epochs)
        beta = priority.annealed_beta(train.prio_beta0, train.prio_alpha, self.epoch, epochs)
        return Scheduled(mx.array(lr), mx.array(ent), mx.array(beta))

    def _logs(self, wall: float, rollout: Rollout, train: float, losses: Logs) -> Logs:
        phases = self.profiler.take()
        if not phases.get("eval_env"):  # the last epoch of an overlapped run collects nothing
            phases = {name: s for name, s in phases.items() if not name.startswith("eval_")}
        return {
            "SPS": self.config.batch_size / wall,
            "agent_steps": self.global_step,
            "uptime": time.perf_counter() - self._started,
            "epoch": self.epoch,
            **_environment_logs(rollout.logs),
            **self._last_scores(rollout),
            **{f"loss/{name}": value for name, value in losses.items()},
            "perf/rollout": rollout.seconds,
            "perf/train": train,
            "perf/epoch": wall,
            **{f"perf/{name}": value for name, value in phases.items()},
            "util/cpu_mem_gb": self._process.memory_info().rss / 2**30,
            "util/mlx_mem_gb": mx.get_active_memory() / 2**30,
        }

    def _last_scores(self, rollout: Rollout) -> Logs:
        """The mean score of the last 100 episodes, where environments tell each."""
        if rollout.scores is not None:
            self._scores.take(rollout.scores)
        mean = self._scores.mean()
        return {} if mean is None else {SCORE: mean}


def _environment_logs(logs: dict[str, float]) -> Logs:
    return {f"env/{name}": float(value) for name, value in logs.items()}


def _merge_means(total: Logs, new: Logs) -> Logs:
    """Per-episode means of two periods together, weighted by their episodes env/n."""
    if not new or not total:
        return new or total
    a, b = total["env/n"], new["env/n"]
    merged = {name: (total.get(name, 0) * a + new.get(name, 0) * b) / (a + b) for name in new}
    return {**merged, "env/n": a + b}
