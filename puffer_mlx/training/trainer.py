"""The trainer: collect a rollout, train on it, report. It does no input or output.

for logs in trainer:
    print(logs["SPS"], logs.get("env/score"))
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint.folder import State
from puffer_mlx.config import Config
from puffer_mlx.config.memory_needs import refuse_state, refuse_training
from puffer_mlx.errors import UserError
from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.ops import verification
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.ppo import optimizers, precision, priority, schedules
from puffer_mlx.ppo.algorithms import Scheduled
from puffer_mlx.ppo.update import TrainState
from puffer_mlx.profiling.phases import SAMPLE_DELAY_S, Profiler
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.rollout.time_limits import without_clip
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import training_memory
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.training import self_play
from puffer_mlx.training.collector import Collector, Rollout
from puffer_mlx.training.epoch_logs import (
    EpochLogs,
    Logs,
    UnderWay,
    environment_logs,
    merge_means,
    phase_logs,
)
from puffer_mlx.training.learner import Learner, Update
from puffer_mlx.training.placement import Acting, as_on_first, place
from puffer_mlx.training.reader import Learned
from puffer_mlx.training.rollout_queue import RolloutQueue
from puffer_mlx.training.state import restore_state, save_state
from puffer_mlx.trees import leaves, named
from puffer_mlx.vec.base import VecEnv

RECORDED = 16  # agents whose last rollout a checkpoint keeps, for comparing exports


class Trains(Protocol):
    """Attributes of a trainer that displays and players read."""

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
    """Trains a policy; iterate over it, one epoch (N * T steps) at a time.

    Args:
        config: a valid configuration (``config.validate``).
        vec: environments with the configuration's agents and buffers; the caller closes them.
        policy: the policy to train; None: the one that the configuration describes.
        weights: initial weights; None: drawn from ``base.seed``.
        like: the state of a run to be resumed. Where the configuration says ``auto``, the choices
            of that run are made again.
        ranks: the processes that train together. ``vec`` has this process's agents,
            ``ranks.own(config)``.

    Attributes:
        epoch: epochs trained.
        global_step: environment steps trained on so far, summed over agents.
        stop: set to True (from a signal handler, say) to end the iteration after the current epoch.
        placement: the devices that act and train.
        profiler: seconds by phase, and a trace if it is given one.
        schedule: maps the fraction of epochs done, from 0 to below 1, to the learning rate; None:
            the configuration's schedule.

    The parts of a trainer. Change them between two steps only:

    Attributes:
        queue: the rollout to train on, the next one, and the random key.
        collector: collects rollouts.
        learner: trains on them.
        train_state: weights and optimizer state.
        prepared: the next update, if it is prepared already.
        epoch_logs: makes the records, and knows the scores of the last episodes.
        self_play: the opponents; None without.
        rate: learning rate of the adaptive schedule; None with another schedule.
    """

    def __init__(
        self,
        config: Config,
        vec: VecEnv,
        policy: Policy | None = None,
        weights: Any = None,
        like: State | None = None,
        ranks: SingleProcess = SINGLE_PROCESS,
    ) -> None:
        choose_cache_limit()
        local = ranks.own(config)
        kept = optimizers.state_size(optimizers.from_config(config))
        refuse_training(local, vec.spec, kept, training_memory())
        policy = policy or configured_policy(vec.spec, config)
        self.config, self.vec, self.policy, self.ranks = config, vec, policy, ranks
        self.epoch, self.global_step, self.stop = 0, 0, False
        key, self.train_state = _first_state(config, policy, weights)
        self.self_play = self_play.begin_self_play(config, vec, self.weights, ranks)
        seats = self.self_play.seats if self.self_play else None
        acting = Acting(local, vec, policy, compile_act(policy), seats)
        resumed = like.numbers if like else {}
        verification.refuse(resumed.get("refused", ()), "in an earlier part of this run")
        self.placement = as_on_first(
            ranks, local, lambda asked: place(acting._replace(config=asked), self.weights, resumed)
        )
        self.profiler = Profiler(bool(config.base.profile))
        timer = self.profiler.train
        ranks.begin(vec)
        self.collector = Collector(acting, self.placement, self.profiler.rollout, ranks)
        self.queue = RolloutQueue(self.collector, key, timer, self._opponents)
        learned = Learned(config, seats) if seats else None
        learning = without_clip(config) if self.collector.bootstraps else config
        self.learner = Learner(learning, policy, self.placement, timer, ranks, learned)
        if self.learner.graph is not None and backend() == "cuda":
            self.profiler.sample_delay = SAMPLE_DELAY_S
        self.epoch_logs = EpochLogs(config)
        self.schedule: Callable[[float], float] | None = None
        adaptive = config.train.lr_schedule == schedules.ADAPTIVE
        self.rate = config.train.learning_rate if adaptive else None
        self.prepared: Update | None = None
        self._began: float | None = None  # when the epoch in progress began
        self._last_seconds = 0.0  # of the previous epoch
        self._compiled = False  # the first epoch of a start compiles

    def __iter__(self) -> Iterator[Logs]:
        """Train to the end of the schedule or until ``stop``; yield one record per epoch."""
        while self.goes_on():
            yield self.step()

    def step(self) -> Logs:
        """Train for one epoch: a rollout of N * T steps, then an update of K minibatches on it.

        With ``train.overlap`` another thread collects the next rollout during the update. A rollout
        that a GPU makes by itself is launched right after the update's last minibatch, before the
        results are read, and is in progress when this returns.

        If the update raises, its rollout is kept, and the next call repeats the update. If
        collecting this epoch's rollout raises, nothing has changed but the environments: see
        ``Collector.resync``. A KeyboardInterrupt in ``queue.settle``, while another thread finishes
        the next rollout, comes after the epoch: only its record is lost.

        Returns:
            The epoch's record.
        """
        self._began = began = time.perf_counter()
        timer = self.profiler.train
        self.profiler.begin(self.epoch)
        timer.start()
        try:
            rollout = self.queue.current(self.weights, self._times_rollout(self.epoch))
            self._count_games(rollout)
            update_began = time.perf_counter()
            with self.ranks.guarded():
                update = self._prepared_for(rollout)
                timer.lap("train_misc")
                if self.placement.overlap and self.epoch + 1 < self.config.epochs:
                    self.queue.start_next(self.weights)
                update.submit()
                if self._launches_ahead():
                    following = self.queue.launch_ahead(update.state.weights)
                    if self.rate is None:  # else the next learning rate depends on this update
                        self.prepared = self._prepare(following, update.state, self.epoch + 1)
                metrics = update.wait()
                self._share_logs(rollout, update)
            metrics |= self._next_learning_rate(metrics)
            # The rollout is released first: it must not be trained on again by the new weights.
            self.queue.release()
            self.train_state = update.state
            self.epoch += 1
            self.global_step += self.config.batch_size
            timer.lap("train_misc")
            seconds = time.perf_counter() - update_began - update.extra_seconds
            seconds = self._charge(rollout, update.sampled, seconds)
        except BaseException:
            self.queue.take_back()
            self.prepared = None
            raise
        finally:
            try:
                self.queue.settle()
            finally:
                self._began = None
        self._last_seconds = time.perf_counter() - began if self._compiled else 0.0
        self._compiled = True
        self.ranks.settle(self.vec)
        return self._record(rollout, metrics, began, seconds)

    def goes_on(self) -> bool:
        """Return True if there is another epoch: the schedule has one, and ``stop`` isn't set."""
        return self.epoch < self.config.epochs and not self._stopped()

    def evaluate(self) -> Iterator[Logs]:
        """Collect rollouts without training, as PufferLib 4.0 does after its last epoch.

        Until more than ``base.eval_episodes`` have ended, and for at most half as many rollouts as
        training has epochs. A rollout that a failed ``step`` left to be trained on is dropped,
        because its memory is needed. 5.0's evaluation is ``playing/evaluation.py``.

        Yields:
            The environments' means since the evaluation began.
        """
        total: Logs = {}
        self.queue.take_back_all()
        for _ in range(self.config.epochs // 2):
            if total.get("env/n", 0) > self.config.base.eval_episodes or self._stopped():
                return
            self.queue.rollout = None
            try:
                rollout = self.queue.collect(self.weights)
            finally:
                self.queue.settle()
            if self.self_play is not None:
                self.self_play.league.play_on()
            logs, _ = self.ranks.meet(self.epoch, self.weights, rollout.logs, rollout.scores)
            self.global_step += self.config.batch_size
            total = merge_means(total, environment_logs(logs))
            yield {"agent_steps": self.global_step, **total}

    def scheduled(self, epoch: int) -> Scheduled:
        """Return an epoch's learning rate, entropy coefficient and exponent of priorities."""
        train, epochs = self.config.train, self.config.epochs
        if self.schedule is not None:
            lr = schedules.rate_at(self.schedule, epoch / epochs)
        elif self.rate is not None:
            lr = self.rate
        else:
            schedule = train.lr_schedule if train.anneal_lr else "constant"
            numbers = train.learning_rate, train.min_lr_ratio
            lr = schedules.annealed(schedule, *numbers, epoch, epochs)
        schedule = "cosine" if train.anneal_ent_coef else "constant"
        numbers = train.ent_coef, train.min_ent_coef_ratio
        ent_coef = schedules.annealed(schedule, *numbers, epoch, epochs)
        beta = priority.annealed_beta(train.prio_beta0, train.prio_alpha, epoch, epochs)
        return Scheduled(lr, ent_coef, beta)

    def state(self) -> State:
        """Return everything but the weights that ``restore`` needs to continue identically."""
        return save_state(self)

    def restore(self, weights: Any, state: State) -> bool:
        """Continue where ``state`` was saved; returns False if environments start new episodes.

        Args:
            weights: the policy's weights at that time.
            state: from a trainer with the same policy, agents and buffers.

        Raises:
            UserError: the state is of another configuration, or of another optimizer.
        """
        return restore_state(self, weights, state)

    @property
    def under_way(self) -> UnderWay | None:
        """The progress of the epoch, for any thread. It is None between two epochs."""
        if (began := self._began) is None:
            return None
        trains = self.queue.rollout is not None
        progress = self.learner.progress if trains else self.collector.part
        phase = "training" if trains else "rollout"
        return UnderWay(time.perf_counter() - began, self._last_seconds, phase, progress)

    @property
    def weights(self) -> Any:
        """The policy's current weights."""
        return self.train_state.weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        mx.eval(weights)  # the next step may run in another thread
        self.train_state = self.train_state._replace(weights=weights)

    @property
    def acts_in_c(self) -> bool:
        """True if a rollout is one call of C, the policy's steps included."""
        return self.collector.acting.in_c

    @property
    def fault(self) -> UserError | None:
        """The error that says why no minibatch was finite. It is None once one was."""
        return self.learner.health.fault

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(int(w.size) for _, w in named(self.weights))

    @property
    def last_buffer(self) -> Any:
        """Buffer of the last rollout, other than one that was launched ahead."""
        rollout = self.queue.rollout
        ahead = rollout is not None and rollout.ahead
        return self.collector.before if ahead else self.collector.buffer

    @property
    def recorded(self) -> Any:
        """Observations (T, at most 16, D) of the last rollout, as the policy saw them."""
        buffer = self.last_buffer
        return buffer.observations[: buffer.horizon, :RECORDED]

    def _stopped(self) -> bool:
        """Return True if the ranks agree to stop: ``stop`` was set at one of them.

        A signal handler may set ``stop`` while they agree. That counts at the next vote, so it must
        not be overwritten.
        """
        if ends := self.ranks.stops(self.stop):
            self.stop = True
        return ends

    def _times_rollout(self, epoch: int) -> bool:
        """Return True if an epoch waits for its rollout, to time it by itself."""
        return self.profiler.should_sample(epoch) or self.profiler.is_sample_epoch(epoch)

    def _opponents(self) -> tuple[Any, Any]:
        """Return the weights of self-play's opponents, and which of them start anew."""
        if self.self_play is None:
            return (), ()
        return self.self_play.league.opponents, self.self_play.league.fresh

    def _count_games(self, rollout: Rollout) -> None:
        """Count a rollout's games, once, and choose the opponents of the next one."""
        if self.self_play is None or rollout.games is not None:
            return
        if self.placement.overlap:  # a checkpoint holds what the rollout began from
            rollout.self_play = self.self_play.state()
        rollout.games = self.self_play.after(rollout, self.global_step, self.weights)

    def _launches_ahead(self) -> bool:
        """Return True if the next rollout is launched before this update's results are read."""
        following = self.epoch + 1
        possible = self.collector.ahead and self.self_play is None  # opponents are chosen first
        return possible and following < self.config.epochs and not self._times_rollout(following)

    def _prepared_for(self, rollout: Rollout) -> Update:
        """Return the update on a rollout, which may be prepared already."""
        update = self.prepared
        self.prepared = None
        if update is not None:
            scheduled = self.scheduled(self.epoch)
            if update.is_for(rollout, self.train_state, scheduled):
                return update
        return self._prepare(rollout, self.train_state, self.epoch)

    def _prepare(self, rollout: Rollout, before: TrainState, epoch: int) -> Update:
        """Prepare the update of an epoch; nothing is computed yet."""
        key = self.ranks.key(self.queue.update_key(rollout))
        sampled = self.profiler.should_sample(epoch)
        return self.learner.prepare(rollout, before, self.scheduled(epoch), key, epoch, sampled)

    def _share_logs(self, rollout: Rollout, update: Update) -> None:
        """Merge the environments' logs, and episodes' scores, of all ranks."""
        self.collector.read(rollout)
        logs = self.ranks.meet(self.epoch, update.state.weights, rollout.logs, rollout.scores)
        rollout.logs, rollout.scores = logs

    def _next_learning_rate(self, metrics: Logs) -> Logs:
        """Adapt the learning rate to the update's KL; returns what to log of it.

        Only the adaptive schedule adapts. Its rate, and that of a schedule that is a function, are
        logged.
        """
        train = self.config.train
        if self.schedule is not None:
            return {"learning_rate": float(np.float32(self.scheduled(self.epoch).lr))}
        if self.rate is None:
            return {}
        used = self.rate
        kl = metrics.get("kl", math.nan)
        self.rate = schedules.adapted(used, train.learning_rate, kl, train.desired_kl)
        return {"learning_rate": used}

    def _charge(self, rollout: Rollout, sampled: bool, seconds: float) -> float:
        """Divide an update's time among the phases, and return the seconds of training alone.

        Two parts of ``seconds`` are a rollout's: waiting for the current one, if it was launched
        ahead (``late``), and launching the next one.
        """
        following = self.queue.rollout  # None unless it was launched ahead
        late = min(rollout.late, seconds)
        self.profiler.train.apply_sampled_shares(sampled, late)
        self.profiler.rollout.charge("eval_act", late)
        launched = min(following.seconds, seconds - late) if following else 0.0
        own = 0.0 if rollout.ahead else rollout.seconds
        rollout.seconds = own + launched + late
        return seconds - late - launched

    def _record(self, rollout: Rollout, metrics: Logs, began: float, seconds: float) -> Logs:
        """Return the record of the epoch that was just trained."""
        overlap = self.placement.overlap
        if overlap:
            self.profiler.rollout.lap("eval_idle")  # no other thread uses this timer now
        self.profiler.train.lap("train_wait" if overlap else "train_misc")
        wall = time.perf_counter() - began
        logs = self.epoch_logs
        record = logs.record(self.epoch, self.global_step, rollout, metrics, wall, seconds)
        phases = phase_logs(self.profiler.flush())
        return {**record, **(rollout.games or {}), **phases, **logs.memory()}


def _first_state(config: Config, policy: Policy, weights: Any) -> tuple[mx.array, TrainState]:
    """Return the random key and the state before the first epoch."""
    init, key = mx.random.split(mx.random.key(config.base.seed))
    weights = policy.init(init) if weights is None else weights
    optimizer = optimizers.from_config(config).init(weights)
    state = TrainState(weights, optimizer, precision.first_scaler(config.train.precision))
    refuse_state(sum(array.nbytes for array in leaves(state)), training_memory())
    mx.eval(key, *state)
    return key, state
