"""Define the trainer, which collects a rollout, trains on it, and returns a record per epoch.

The trainer neither prints nor writes files.

for logs in trainer:
    print(logs["SPS"], logs.get("env/score"))
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import mlx.core as mx

from puffer_mlx.checkpoint.folder import SavedState
from puffer_mlx.config import Config
from puffer_mlx.config.memory_needs import refuse_large_state, refuse_large_training
from puffer_mlx.distributed.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.ops import verification
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.ppo import optimizers, precision, priority, schedules
from puffer_mlx.ppo.algorithms import Scheduled
from puffer_mlx.ppo.update import TrainState
from puffer_mlx.profiling.phases import PROFILE_DELAY_S, Profiler
from puffer_mlx.rollout.time_limits import without_reward_clip
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import training_memory
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.collectors import make_collector
from puffer_mlx.training.epoch_logs import (
    EpochLogs,
    EpochProgress,
    Logs,
    environment_logs,
    merge_means,
)
from puffer_mlx.training.learner import Learner, Update
from puffer_mlx.training.placement import Acting, broadcast_from_rank0, choose_placement
from puffer_mlx.training.reader import TrainedAgents
from puffer_mlx.training.rollout_queue import RolloutQueue
from puffer_mlx.training.self_play import SelfPlay, create_self_play
from puffer_mlx.training.state import restore_state, save_state
from puffer_mlx.trees import leaves, named_arrays
from puffer_mlx.vec.base import VecEnv

# Number of agents whose latest observations are saved, to compare exports with.
RECORDED_AGENTS = 16


class Trains(Protocol):
    """Interface of a trainer for displays and for programs that play policies."""

    config: Config
    vec: VecEnv
    policy: Policy
    epoch: int
    global_step: int
    stop: bool

    @property
    def weights(self) -> Any:
        """The policy's current weights."""

    def __iter__(self) -> Iterator[Logs]: ...


class Trainer:
    """Train a policy: each iteration trains for one epoch (N * T steps) and yields its record.

    Args:
        config: a valid configuration (``config.validate``).
        vec: environments with the configuration's agents and buffers; the caller closes them.
        policy: the policy to train. None to build it from the configuration.
        weights: initial weights. None for random ones from ``base.seed``.
        resume_state: saved state of the run to resume. The constructor only reads how the run
            resolved ``auto`` options. Call ``restore`` for the rest.
        ranks: the processes that train together. ``vec`` contains only this process's agents, as
            configured by ``ranks.local_config(config)``.

    Attributes:
        epoch: number of completed epochs.
        global_step: number of environment steps of all agents, including those of ``evaluate``.
        stop: set to True, e.g. from a signal handler, to stop after the current epoch.
        placement: the devices that act and train.
        profiler: measures the seconds of each phase, and records a timeline if requested.
        schedules: custom schedules by key of [train] (``ppo.schedules.SCHEDULED_KEYS``). A schedule
            maps the fraction of completed epochs, in [0, 1), to the coefficient. Other coefficients
            follow the configuration.

    Change the following components only between two steps:

    Attributes:
        queue: holds the current rollout, the next rollout if it was started, and the random key.
        collector: collects rollouts.
        learner: trains on rollouts.
        train_state: weights, optimizer state and loss scaler.
        prepared: the next update, if it is already prepared, else None.
        epoch_logs: makes the records of epochs, and stores the scores of the latest episodes.
        self_play: assigns and replaces opponents; None without self-play.
        rate: learning rate of the adaptive schedule; None with another schedule.
    """

    def __init__(
        self,
        config: Config,
        vec: VecEnv,
        policy: Policy | None = None,
        weights: Any = None,
        resume_state: SavedState | None = None,
        ranks: SingleProcess = SINGLE_PROCESS,
    ) -> None:
        choose_cache_limit()
        local = ranks.local_config(config)
        state_size = optimizers.state_size(optimizers.from_config(config))
        refuse_large_training(local, vec.spec, state_size, training_memory())
        policy = policy or configured_policy(vec.spec, config)
        self.config = config
        self.vec = vec
        self.policy = policy
        self.ranks = ranks
        self.epoch = 0
        self.global_step = 0
        self.stop = False
        key, self.train_state = _first_state(config, policy, weights)
        self.self_play = create_self_play(config, vec, self.weights, ranks)
        assignment = self.self_play.assignment if self.self_play else None
        acting = Acting(local, vec, policy, assignment)
        resumed = resume_state.values if resume_state else {}
        verification.refuse(resumed.get("refused", ()), "earlier in this run")
        self.placement = broadcast_from_rank0(
            ranks,
            local,
            lambda local: choose_placement(acting._replace(config=local), self.weights, resumed),
        )
        self.profiler = Profiler(bool(config.base.profile))
        timer = self.profiler.train
        ranks.begin_statistics(vec)
        self.collector = make_collector(acting, self.placement, self.profiler.rollout, ranks)
        self.queue = RolloutQueue(self.collector, key, timer, self.self_play)
        trained_agents = TrainedAgents(config, assignment) if assignment else None
        learning = without_reward_clip(config) if self.collector.bootstraps else config
        self.learner = Learner(learning, policy, self.placement, timer, ranks, trained_agents)
        if self.learner.graph is not None and backend() == "cuda":
            self.profiler.profile_delay = PROFILE_DELAY_S  # profiling compiles separate functions
        self.epoch_logs = EpochLogs(config)
        self.schedules: dict[str, Callable[[float], float]] = {}
        adaptive = config.train.lr_schedule == schedules.ADAPTIVE
        self.rate = config.train.learning_rate if adaptive else None
        self.prepared: Update | None = None
        self._began: float | None = None  # start time of the epoch in progress
        self._last_seconds = 0.0  # duration of the previous epoch
        self._compiled = False  # False during the first epoch of the process, which compiles

    def __iter__(self) -> Iterator[Logs]:
        """Train until the last epoch or until ``stop`` is set; yield one record per epoch."""
        while self.has_next_epoch():
            yield self.step()

    def step(self) -> Logs:
        """Train for one epoch: collect a rollout of N * T steps, then update on K minibatches.

        With ``train.overlap``, another thread collects the next rollout during the update, with the
        weights from before the update, and finishes before this method returns. Without overlap,
        if the GPU steps the environments, the next rollout is launched after the last minibatch is
        submitted and before the update's results are read. The GPU may still compute it when this
        method returns.

        If the step fails, neither weights nor optimizer change, unless an interrupt comes while the
        update is committed. The next call uses the same random keys:

            - If the rollout failed, its steps are dropped, and the next call collects a new one.
              The environments have moved, unless their state was saved: see ``Collector.resync``.
            - If the update failed, the next call repeats it on the same rollout. The next rollout
              is kept if another thread collects it, and undone if it was launched on the GPU.
            - If ``collector.settle`` raises KeyboardInterrupt, the epoch is complete and only its
              record is lost.

        Returns:
            The epoch's record.
        """
        began = time.perf_counter()
        self._began = began
        timer = self.profiler.train
        self.profiler.begin_epoch(self.epoch)
        timer.start()
        try:
            rollout = self.queue.current(self.weights, self.profiler.must_time_rollout(self.epoch))
            if self.self_play is not None and rollout.games is None:
                self._count_games(rollout, self.self_play)
            update_began = time.perf_counter()
            with self.ranks.report_lost_ranks():
                update = self._prepared_for(rollout)
                timer.lap("train_misc")
                if self.placement.overlap and self.epoch + 1 < self.config.epochs:
                    self.queue.start_next(self.weights)
                update.submit()
                if self._launches_ahead():
                    next_rollout = self.queue.launch_next(update.state.weights)
                    if self.rate is None:  # An adaptive rate depends on this update's KL.
                        self.prepared = self._prepare(next_rollout, update.state, self.epoch + 1)
                metrics = update.wait()
                self.collector.read(rollout)
                rollout.logs, rollout.scores = self.ranks.sync_epoch(
                    self.epoch, update.state.weights, rollout.logs, rollout.scores
                )
            next_rate = self._next_rate(metrics)
            used = update.scheduled
            metrics |= {**used.loss, "learning_rate": used.lr, "ent_coef": used.ent_coef}
            # Commit the update. The rollout is released first, so that no rollout is trained on
            # twice if an interrupt comes within these lines. It may lose the update or a counter.
            self.queue.release()
            self.train_state = update.state
            self.rate = next_rate
            self.epoch += 1
            self.global_step += self.config.batch_size
            timer.lap("train_misc")
            seconds = self._charge(rollout, update, update_began)
        except BaseException:
            self.queue.take_back()
            self.prepared = None
            raise
        finally:
            try:
                self.collector.settle()
            finally:
                self._began = None
        self.ranks.merge_statistics(self.vec)
        return self._record(rollout, metrics, began, seconds)

    def has_next_epoch(self) -> bool:
        """Return True if another epoch is scheduled and ``stop`` isn't set."""
        return self.epoch < self.config.epochs and not self._stopped()

    def evaluate(self) -> Iterator[Logs]:
        """Evaluate the policy by rollouts without training, as PufferLib 4.0 does after training.

        Evaluation ends after more than ``base.eval_episodes`` episodes, or after half as many
        rollouts as training has epochs. If a failed ``step`` left a rollout, it is dropped, because
        evaluation needs its buffer. The evaluation of 5.0 is in ``evaluation/evaluator.py``.

        Yields:
            The environments' mean metrics since the evaluation began.
        """
        total: Logs = {}
        self.queue.take_back_all()
        for _ in range(self.config.epochs // 2):
            if total.get("env/n", 0) > self.config.base.eval_episodes or self._stopped():
                return
            self.queue.release()
            try:
                rollout = self.queue.current(self.weights)
            finally:
                self.collector.settle()
            self.queue.release()
            if self.self_play is not None:
                self.self_play.league.clear_replaced()
            logs, _ = self.ranks.sync_epoch(self.epoch, self.weights, rollout.logs, rollout.scores)
            self.global_step += self.config.batch_size
            total = merge_means(total, environment_logs(logs))
            yield {"agent_steps": self.global_step, **total}

    def scheduled(self, epoch: int) -> Scheduled:
        """Return the scheduled coefficients of an epoch, such as its learning rate."""
        train = self.config.train
        epochs = self.config.epochs
        custom: dict[str, float] = {}
        for name, function in self.schedules.items():
            custom[name] = schedules.value_at(function, epoch / epochs, name)
        lr = custom.pop("learning_rate", self.rate)
        if lr is None:
            schedule = train.lr_schedule if train.anneal_lr else "constant"
            rate = train.learning_rate
            lr = schedules.annealed(schedule, rate, train.min_lr_ratio, epoch, epochs)
        ent_coef = custom.pop("ent_coef", None)
        if ent_coef is None:
            schedule = "cosine" if train.anneal_ent_coef else "constant"
            least = train.min_ent_coef_ratio
            ent_coef = schedules.annealed(schedule, train.ent_coef, least, epoch, epochs)
        beta = priority.annealed_beta(train.prio_beta0, train.prio_alpha, epoch, epochs)
        return Scheduled(lr, ent_coef, beta, loss=custom)

    def state(self) -> SavedState:
        """Return the trainer's state for a checkpoint, without the weights."""
        return save_state(self)

    def restore(self, weights: Any, state: SavedState) -> bool:
        """Restore a trainer's state from a checkpoint.

        Args:
            weights: the policy's weights from the same checkpoint.
            state: saved state of a trainer with the same policy, agents and buffers.

        Returns:
            False if the environments start new episodes, else True.

        Raises:
            UserError: the state belongs to another configuration or another optimizer.
        """
        return restore_state(self, weights, state)

    @property
    def progress(self) -> EpochProgress | None:
        """Progress of the current epoch, or None between two epochs. Any thread may read it."""
        if (began := self._began) is None:
            return None
        trains = self.queue.rollout is not None
        progress = self.learner.progress if trains else self.collector.progress
        phase = "training" if trains else "rollout"
        return EpochProgress(time.perf_counter() - began, self._last_seconds, phase, progress)

    @property
    def weights(self) -> Any:
        """The policy's current weights."""
        return self.train_state.weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        mx.eval(weights)  # Another thread may run the next step.
        self.train_state = self.train_state._replace(weights=weights)

    @property
    def acts_in_c(self) -> bool:
        """True if one call of a C function collects a rollout, including the policy's steps."""
        return self.collector.acting.in_c

    @property
    def error(self) -> UserError | None:
        """Error that the caller should raise if no minibatch has been finite so far, else None."""
        return self.learner.finite_check.error

    @property
    def parameters(self) -> int:
        """Number of scalar weights of the policy."""
        return sum(int(w.size) for _, w in named_arrays(self.weights))

    @property
    def last_buffer(self) -> Any:
        """Buffer of the latest rollout, ignoring a rollout that was launched ahead."""
        rollout = self.queue.rollout
        if rollout is not None and rollout.launched_ahead:
            return self.collector.previous_buffer
        return self.collector.buffer

    @property
    def recorded(self) -> Any:
        """Observations of the latest rollout, as the policy received them, (T, up to 16, D)."""
        buffer = self.last_buffer
        return buffer.observations[: buffer.horizon, :RECORDED_AGENTS]

    def _stopped(self) -> bool:
        """Return True if ``stop`` is set on any process of the run.

        ``stop`` is never reset here, because a signal handler may set it during the vote. The next
        vote then uses it.
        """
        if ends := self.ranks.should_stop(self.stop):
            self.stop = True
        return ends

    def _count_games(self, rollout: Rollout, self_play: SelfPlay) -> None:
        """Count the self-play games of a rollout, and choose the next rollout's opponents."""
        # With overlap, resuming repeats this rollout, so a checkpoint needs the earlier state.
        if self.placement.overlap:
            rollout.self_play = self_play.state()
        rollout.games = self_play.finish_rollout(rollout, self.global_step, self.weights)

    def _launches_ahead(self) -> bool:
        """Return True if the next rollout is launched before this update's results are read."""
        if not self.collector.launches_ahead or self.self_play is not None:
            return False  # Self-play chooses the opponents first.
        next_epoch = self.epoch + 1
        return next_epoch < self.config.epochs and not self.profiler.must_time_rollout(next_epoch)

    def _prepared_for(self, rollout: Rollout) -> Update:
        """Return the update on a rollout: the prepared one if it is still valid, else a new one."""
        update = self.prepared
        self.prepared = None
        if update is not None:
            scheduled = self.scheduled(self.epoch)
            if update.is_for(rollout, self.train_state, scheduled):
                return update
        return self._prepare(rollout, self.train_state, self.epoch)

    def _prepare(self, rollout: Rollout, state_before: TrainState, epoch: int) -> Update:
        """Prepare the update of an epoch without computing it."""
        key = self.ranks.local_key(self.queue.update_key(rollout))
        profiled = self.profiler.should_profile(epoch)
        scheduled = self.scheduled(epoch)
        return self.learner.prepare(rollout, state_before, scheduled, key, epoch, profiled)

    def _next_rate(self, metrics: Logs) -> float | None:
        """Return the adaptive learning rate after an update, or None with another schedule."""
        if self.rate is None:
            return None
        train = self.config.train
        kl = metrics.get("kl", math.nan)
        return schedules.adapted_rate(self.rate, train.learning_rate, kl, train.desired_kl)

    def _charge(self, rollout: Rollout, update: Update, update_began: float) -> float:
        """Charge the time since ``update_began`` to profiling phases.

        The rollout phases get the time of waiting for the current rollout, if it was launched
        ahead, and of launching the next one. Training gets the rest.

        Returns:
            Seconds of training.
        """
        seconds = time.perf_counter() - update_began - update.extra_seconds
        waiting = min(rollout.remaining_seconds, seconds)
        self.profiler.train.apply_profiled_fractions(update.profiled, waiting)
        if waiting:  # No other thread uses this timer if rollouts are launched ahead.
            self.profiler.rollout.charge("eval_act", waiting)
        next_rollout = self.queue.rollout  # None unless it was launched ahead
        launching = min(next_rollout.seconds, seconds - waiting) if next_rollout else 0.0
        collecting = 0.0 if rollout.launched_ahead else rollout.seconds
        rollout.seconds = collecting + launching + waiting
        return seconds - waiting - launching

    def _record(self, rollout: Rollout, metrics: Logs, began: float, seconds: float) -> Logs:
        """Return the log record of the epoch that has just ended."""
        overlap = self.placement.overlap
        if overlap:
            self.profiler.rollout.lap("eval_idle")  # No other thread uses this timer now.
        self.profiler.train.lap("train_wait" if overlap else "train_misc")
        wall = time.perf_counter() - began
        self._last_seconds = wall if self._compiled else 0.0
        self._compiled = True
        phases = self.profiler.flush()
        durations = wall, seconds, phases
        return self.epoch_logs.record(self.epoch, self.global_step, rollout, metrics, *durations)


def _first_state(config: Config, policy: Policy, weights: Any) -> tuple[mx.array, TrainState]:
    """Return the random key, weights and optimizer state before the first epoch."""
    init, key = mx.random.split(mx.random.key(config.base.seed))
    weights = policy.init(init) if weights is None else weights
    optimizer = optimizers.from_config(config).init(weights)
    state = TrainState(weights, optimizer, precision.first_scaler(config.train.precision))
    refuse_large_state(sum(array.nbytes for array in leaves(state)), training_memory())
    mx.eval(key, *state)
    return key, state
