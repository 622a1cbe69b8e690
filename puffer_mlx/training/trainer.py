"""The trainer: collect a rollout, train on it, report. It does no input or output.

for logs in trainer:
    print(logs["SPS"], logs.get("env/score"))
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint.folder import State, within
from puffer_mlx.config import Config
from puffer_mlx.config.fit import typed
from puffer_mlx.config.memory_needs import refuse_state, refuse_training
from puffer_mlx.errors import UserError
from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.ppo import optimizers, precision, priority, schedules
from puffer_mlx.ppo.algorithms import Scheduled
from puffer_mlx.ppo.update import TrainState, compile_update
from puffer_mlx.profiling.phases import LATER, Profiler
from puffer_mlx.rollout.on_gpu import ENDED, RELAX, GPUError
from puffer_mlx.rollout.time_limits import without_clip
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building, training_memory
from puffer_mlx.system.mlx_memory import choose_cache_limit
from puffer_mlx.training import self_play
from puffer_mlx.training.collector import Collector, Rollout, RolloutStart
from puffer_mlx.training.epoch_logs import (
    EpochLogs,
    Logs,
    UnderWay,
    environment_logs,
    merge_means,
    phase_logs,
)
from puffer_mlx.training.learner import Built, Draws, EpochInputs, Learner
from puffer_mlx.training.observers import FirstRatios, Observer, SampledPhases, computed
from puffer_mlx.training.placement import Acting, Placement, as_on_first, place
from puffer_mlx.training.reader import Learned
from puffer_mlx.trees import leaves, named
from puffer_mlx.vec.base import VecEnv

SELF_PLAY = "selfplay"  # of a state: the opponents'
RECORDED = 16  # agents whose last rollout a checkpoint keeps, for comparing exports


@dataclass
class Pending:
    """A rollout that is collected and not trained on yet.

    Attributes:
        draws: the key that its minibatches are drawn by, once it is drawn itself: training that
            failed is repeated with the same ones.
        ahead: whether it was launched before anybody knew what the training before it came to.
        built: then the training on it, where that is built already,
        builder: by this thread, the only one that can compute it,
        numbers: with an epoch's scheduled numbers.
        before: of self-play, its state before the rollout's games were counted.
        games: and what there is to log of them.
    """

    rollout: Rollout
    draws: mx.array | None = None
    ahead: bool = False
    built: Built | None = None
    builder: threading.Thread | None = None
    numbers: tuple[float, ...] = ()
    before: self_play.State | None = None
    games: Logs = field(default_factory=dict)


class Trains(Protocol):
    """What displays and players need of a trainer; the library's is one, too."""

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
        policy: the one that the configuration describes if None.
        weights: initial weights; drawn from ``base.seed`` if None.
        like: of a run that goes on; where the configuration says ``auto``, as it was there.
        ranks: the processes that train it together, of which this is one (``machines``). The
            environments are its part, ``ranks.own(config)``.

    Attributes:
        epoch: epochs trained.
        global_step: environment steps trained on so far, summed over agents.
        stop: set to True (from a signal handler, say) to end the iteration after the current epoch.
        placement: where it acts and trains.
        profiler: seconds by phase, and a trace if it is given one.

    Its parts, for what looks on from outside (``observers.py``); change them between two steps:

    Attributes:
        learner: trains; its ``steps`` can be watched or replaced.
        collector: collects; its ``acting`` can be replaced.
        train_state: what training changes.
        pending: the rollout that the next step trains on; None if it has to be collected first.
        epoch_logs: makes the records; knows the scores of the last episodes.
        self_play: its opponents; None without.
        schedule: the learning rate of the epochs done as a part of all, from 0 to below 1; None:
            the configuration's.
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
        part = ranks.own(config)  # of the agents that this process has
        kept = optimizers.kept(optimizers.of(config))
        refuse_training(part, vec.spec, kept, training_memory())
        policy = policy or configured_policy(vec.spec, config)
        self.config, self.vec, self.policy, self.ranks = config, vec, policy, ranks
        self.epoch, self.global_step, self.stop = 0, 0, False
        self._key, self.train_state = _first_state(config, policy, weights)
        run, first = compile_update(policy, part.train.precision), self.weights
        self.self_play = self_play.begin_self_play(config, vec, first, ranks)
        seats, before = self.self_play and self.self_play.seats, like.numbers if like else {}
        acting = Acting(part, vec, policy, run, seats)
        self.placement = placement = as_on_first(
            ranks, part, lambda asked: place(acting._replace(config=asked), first, before)
        )
        self.profiler = Profiler(bool(config.base.profile))
        ranks.begin(vec)
        timer = self.profiler.rollout
        self.collector = Collector(acting, placement, timer, ranks)
        learned = Learned(config, seats) if seats else None
        learning = without_clip(config) if self.collector.bootstraps else config
        self.learner = Learner(learning, run, placement, policy, ranks, learned)
        if self.learner.whole_epoch is not None and backend() == "cuda":
            self.profiler.patience = LATER
        self._phases = SampledPhases(self.profiler.train, run.logprobs, self.learner.phases)
        comparable = _first_ratios_are_one(config, policy, placement)
        self._ratios = FirstRatios(self.learner.reader, comparable)
        self.epoch_logs = EpochLogs(config)
        adaptive = config.train.lr_schedule == schedules.ADAPTIVE
        self._rate = config.train.learning_rate if adaptive else None  # else the schedule's
        self.schedule: Callable[[float], float] | None = None
        self.pending: Pending | None = None
        self._following: Pending | None = None  # launched beside the training under way
        self._acts_next: Any = None  # the next rollout's weights, where they aren't the newest
        self._began: float | None = None  # of the epoch under way
        self._usual = 0.0  # seconds of the one before
        self._compiled = False  # what the first epoch of a start does

    @property
    def under_way(self) -> UnderWay | None:
        """What the epoch under way has come to, from any thread; None between two of them."""
        if (began := self._began) is None:
            return None
        phase, half = ("training", self.learner) if self.pending else ("rollout", self.collector)
        return UnderWay(time.perf_counter() - began, self._usual, phase, half.part)

    @property
    def weights(self) -> Any:
        """The policy's current weights."""
        return self.train_state.weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        mx.eval(weights)  # the next step may run in another thread
        self.train_state = replace(self.train_state, weights=weights)

    @property
    def acts_in_c(self) -> bool:
        """Whether a rollout is one call of C, the policy's steps included."""
        return self.collector.acting.in_c

    @property
    def fault(self) -> UserError | None:
        """Why nothing was learned: not one minibatch was finite. None if one was."""
        return self.learner.health.fault

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(int(w.size) for _, w in named(self.weights))

    @property
    def last_buffer(self) -> Any:
        """The last rollout's buffer; not of one that was launched ahead."""
        ahead = self.pending is not None and self.pending.ahead
        return self.collector.before if ahead else self.collector.buffer

    @property
    def recorded(self) -> Any:
        """Observations (T, at most 16, D) of the last rollout, as the policy saw them."""
        buffer = self.last_buffer
        return buffer.observations[: buffer.horizon, :RECORDED]

    def __iter__(self) -> Iterator[Logs]:
        """Train to the end of the schedule or until ``stop``; one record for each epoch."""
        while self.goes_on():
            yield self.step()

    def goes_on(self) -> bool:
        """Whether there is a further epoch: the schedule has one, and ``stop`` isn't set."""
        return self.epoch < self.config.epochs and not self._stopped()

    def _stopped(self) -> bool:
        """Return True if the ranks agree to stop: ``stop`` was set at one of them.

        A signal handler may set ``stop`` while they agree. That counts at the next vote, so it must
        not be overwritten.
        """
        if ends := self.ranks.stops(self.stop):
            self.stop = True
        return ends

    def step(self) -> Logs:
        """One epoch: a rollout of N * T steps, then K minibatches on it.

        Training that a Mac's driver ended is repeated once, in smaller pieces.

        With ``train.overlap`` the next epoch's rollout is collected beside the minibatches. Nothing
        is under way any more when this returns or raises, and a rollout that was collected isn't
        lost: the next call goes on with it. A KeyboardInterrupt while this waits for the next
        rollout comes after the epoch: its record is lost, the epoch isn't.

        If the rollout fails, nothing has changed but the environments: see ``Collector.resync``.

        A rollout that is one launch on a GPU (``Collector.ahead``) is launched behind the last
        minibatch, before the losses are read, and is under way when this returns. It acts by the
        weights that these minibatches make: nothing lags. Where other weights are set meanwhile,
        or training fails, it is taken back, and launched again by the next call.
        """
        began, overlap = time.perf_counter(), self.placement.overlap
        self._began = began
        self.profiler.begin(self.epoch)
        self.profiler.train.start()
        try:
            if not self._compiled:
                self._compile_ahead()
            pending = self._newest() or self._next()
            with self.ranks.guarded():
                pending, losses, seconds = self._train(pending)
        except BaseException:
            self._following = self._taken_back(self._following)
            raise
        finally:
            self.collector.settle()
            self._began = None
        self._usual = time.perf_counter() - began if self._compiled else 0.0
        self._compiled = True
        self.ranks.settle(self.vec)
        if overlap:
            self.profiler.rollout.lap("eval_idle")  # nobody else uses the timer now
        self.profiler.train.lap("train_wait" if overlap else "train_misc")
        wall, logs = time.perf_counter() - began, self.epoch_logs
        record = logs.record(self.epoch, self.global_step, pending.rollout, losses, wall, seconds)
        return {**record, **pending.games, **phase_logs(self.profiler.take()), **logs.memory()}

    def evaluate(self) -> Iterator[Logs]:
        """Roll out without training, as PufferLib 4.0 after its last epoch; 5.0: ``evaluation.py``.

        Until more than ``base.eval_episodes`` have ended, at most half as many as training epochs.
        Yields the environments' means since the evaluation began. It needs the rollouts' memory:
        a rollout that a failed ``step`` left to be trained on is dropped.
        """
        total: Logs = {}
        self.pending = self._taken_back(self.pending)
        for _ in range(self.config.epochs // 2):
            if total.get("env/n", 0) > self.config.base.eval_episodes or self._stopped():
                return
            self.pending = None
            try:
                rollout = self._rollout()
            finally:
                self.collector.settle()
            if self.self_play is not None:
                self.self_play.league.play_on()
            told = self.collector.read(rollout).logs, rollout.scores
            logs, _ = self.ranks.meet(self.epoch, self.weights, *told)
            self.global_step += self.config.batch_size
            total = merge_means(total, environment_logs(logs))
            yield {"agent_steps": self.global_step, **total}

    def begin_rollout(self, weights: Any = None) -> None:
        """Begin the next rollout, which ``step`` does itself unless it is begun.

        With ``train.overlap`` it is collected by another thread from now on, else when a step needs
        it.

        Args:
            weights: to act by, evaluated; if None, the newest, or after ``restore`` those that
                acted next in the run that goes on.
        """
        if weights is None:
            weights = self.weights if self._acts_next is None else self._acts_next
        league = self.self_play and self.self_play.league
        opponents, fresh = (league.opponents, league.fresh) if league else ((), ())
        self._key = self.collector.begin(weights, self._key, opponents, fresh)
        self._acts_next = None
        self.profiler.train.lap("train_copy")  # of weights and noise, to where they are used

    def scheduled(self) -> Scheduled:
        """This epoch's learning rate, entropy coefficient and priority exponent."""
        return Scheduled(*map(mx.array, self._numbers(self.epoch)))

    def inputs(self, rollout: Rollout, draws: Draws) -> EpochInputs:
        """What this epoch's training on a rollout is computed from."""
        return EpochInputs(rollout, self.train_state, draws, self.scheduled())

    def _numbers(self, epoch: int) -> tuple[float, float, float]:
        train, epochs = self.config.train, self.config.epochs
        lr = self._rate
        if self.schedule is not None:
            lr = schedules.rate_at(self.schedule, epoch / epochs)
        elif lr is None:
            schedule = train.lr_schedule if train.anneal_lr else "constant"
            numbers = train.learning_rate, train.min_lr_ratio
            lr = schedules.annealed(schedule, *numbers, epoch, epochs)
        schedule = "cosine" if train.anneal_ent_coef else "constant"
        numbers = train.ent_coef, train.min_ent_coef_ratio
        ent = schedules.annealed(schedule, *numbers, epoch, epochs)
        beta = priority.annealed_beta(train.prio_beta0, train.prio_alpha, epoch, epochs)
        return lr, ent, beta

    def state(self) -> State:
        """Everything that a later ``restore`` needs, with the weights, to go on identically.

        A rollout that isn't trained on yet is not in it, but what it began from; without overlap,
        unless it was launched ahead, what it ended with, since that is where the environments are.
        """
        pending, collector = self._newest(), self.collector
        begun = pending.rollout.start if pending else collector.begun
        begun = begun if self.placement.overlap or (pending and pending.ahead) else None
        environments = collector.state_of(begun) if begun else collector.state()
        part: dict[str, Any] = {  # of this process's agents
            "recurrent": begun.states if begun else collector.states,
            "carry": begun.buffer.carry(0) if begun else collector.buffer.carry(),
        }
        arrays = {
            **optimizers.stored(self.train_state.optimizer),
            "scaler": self.train_state.scaler,
            "key": begun.key if begun else self._key,
            **part,
            "recorded": self.recorded,
        }
        acting = begun.weights if begun else self._acts_next
        if acting is not None and acting is not self.weights:
            arrays["acting"] = acting
        if environments is not None:
            arrays["environments"] = part["environments"] = mx.array(environments)
        if (scores := self.epoch_logs.scores.state()) is not None:
            arrays["scores"] = mx.array(scores)
        arrays |= self.ranks.gathered(dict(named(part)))
        numbers = {
            "epoch": self.epoch,
            "global_step": self.global_step,
            "uptime": self.epoch_logs.uptime,
            "rollout_device": self.placement.rollout_device,
            "optimizer": self.config.train.optimizer,
            **self.ranks.numbers(),
        }
        if self.schedule is not None:
            numbers["schedule"] = "function"
        elif self._rate is not None:
            numbers["learning_rate"] = self._rate
        if self.self_play is not None:
            again = self.pending.before if self.pending and begun else None
            arrays[SELF_PLAY], numbers[SELF_PLAY] = again or self.self_play.state()
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
        self._refuse_lost_schedule(state)
        state = State(self.ranks.taken(state.arrays, state.numbers), state.numbers)
        environments, scores = state.arrays.get("environments"), state.arrays.get("scores")
        going_on = environments is not None and self.collector.vec.state() is not None
        now, collector = self.train_state, self.collector
        mine = {**optimizers.stored(now.optimizer), "key": self._key, "scaler": now.scaler}
        if going_on:
            mine |= {"recurrent": collector.states, "carry": collector.buffer.carry()}
        if self.placement.overlap and any(name.startswith("acting.") for name in state.arrays):
            mine["acting"] = now.weights
        trees = state.taken(mine)
        if going_on:
            self.collector.vec.restore(np.asarray(environments))
            self.ranks.begin(self.vec)
        optimizer = optimizers.recovered(trees, now.optimizer)
        self.train_state = TrainState(weights, optimizer, trees["scaler"])
        self._key, self._acts_next, self.pending = trees["key"], trees.get("acting"), None
        collector.discard()
        if going_on:
            collector.restore(trees.get("recurrent", collector.states), trees["carry"])
        self.epoch, self.global_step = state.numbers["epoch"], state.numbers["global_step"]
        if self._rate is not None:  # a run may go on with another schedule than it began with
            self._rate = state.numbers.get("learning_rate", self._rate)
        if self.self_play is not None:
            opponents = within(state.arrays, SELF_PLAY)
            self.self_play.restore(opponents, state.numbers.get(SELF_PLAY))
            if not going_on:
                self.self_play.begin_anew()
        scores = None if scores is None else np.asarray(scores)
        self.epoch_logs.restore(state.numbers["uptime"], scores)
        mx.eval(weights, trees)
        return going_on

    def _refuse_lost_schedule(self, state: State) -> None:
        if "schedule" in state.numbers and self.schedule is None:
            if typed(self.config, "train.learning_rate"):
                return  # a person's, which takes the function's place
            raise UserError(
                "the run's learning_rate is a function, which no checkpoint holds",
                "give it again, in Python: Trainer.load(path, learning_rate=…); or a number, which"
                " lr_schedule lowers",
            )

    def _newest(self) -> Pending | None:
        """The rollout that waits to be trained on; None if there is none by the newest weights."""
        pending = self.pending
        if pending and pending.ahead and pending.rollout.start.weights is not self.weights:
            pending = self.pending = self._taken_back(pending)
        return pending

    def _taken_back(self, pending: Pending | None) -> Pending | None:
        """Undo what was launched ahead, and return what is left to train on."""
        if pending is None or not pending.ahead:
            return pending
        self._key = self.collector.take_back(pending.rollout)
        return None

    def _next(self) -> Pending:
        """A rollout to train on; its games are counted before the next one is begun."""
        pending = self.pending = Pending(self._rollout())
        if self.self_play is not None:
            pending.before = self.self_play.state() if self.placement.overlap else None
            pending.games = self.self_play.after(pending.rollout, self.global_step, self.weights)
        return pending

    def _rollout(self) -> Rollout:
        """Return the next rollout: the one begun beside the last training, or a new one.

        If it fails without overlap, it is dropped and the random key is what it was before. So the
        next call does the same as a run that is resumed from ``state``.
        """
        key = self._key
        try:
            if not self.collector.waiting:
                self.begin_rollout()
            rollout = self.collector.take(ahead=not self._waits(self.epoch))
        except BaseException as error:
            if not self.placement.overlap:
                self.collector.discard()
                self._key = key
            if not isinstance(error, RuntimeError) or ENDED not in str(error):
                raise
            hint = f"{RELAX}; or --train.rollout-device cpu"
            raise UserError(f"macOS ended the GPU's rollout: {error}", hint) from None
        if self.placement.overlap:
            self.profiler.train.lap("train_wait")
        else:
            self.profiler.train.start()  # it was this thread's own work, on the other timer
        return rollout

    def _compile_ahead(self) -> None:
        """Begin to compile, on CUDA, what training launches, beside what a rollout does."""
        buffer, states = self.collector.buffer, self.collector.states
        start = RolloutStart(buffer, self.weights, states, self._key, None)
        with building:
            inputs = self.inputs(Rollout(buffer, start, {}, 0.0), self.learner.draws(self._key))
        self.learner.compile_ahead(inputs)

    def _waits(self, epoch: int) -> bool:
        """Whether an epoch's rollout is waited for, which tells how long it takes."""
        return self.profiler.samples(epoch) or self.profiler.due(epoch)

    def _go_on(self, now: TrainState) -> None:
        """Launch the next rollout, by weights that are being computed, where that can be."""
        epoch = self.epoch + 1
        if not self.collector.ahead or self.self_play is not None:  # its games are counted first
            return
        if epoch < self.config.epochs and not self._waits(epoch):
            self.profiler.train.lap("train_misc")
            key = self.collector.begin(now.weights, self._key)
            try:
                rollout = self.collector.take(ahead=True)
            except BaseException:
                self.collector.discard()
                raise
            self._key, self._following = key, Pending(rollout, ahead=True)
            self.profiler.train.start()  # it was this thread's own work, on the other timer
            if self._rate is None:  # else the losses decide
                self._build_training(self._following, now)

    def _build_training(self, pending: Pending, before: TrainState) -> None:
        """Build the training on the next rollout, while the GPU computes the training before."""
        pending.numbers = self._numbers(self.epoch + 1)
        with building:
            scheduled, draws = Scheduled(*map(mx.array, pending.numbers)), self._draws(pending)
        inputs = EpochInputs(pending.rollout, before, draws, scheduled)
        pending.built = self.learner.build(inputs, self._ratios.comparable)
        pending.builder = threading.current_thread()

    def _train(self, pending: Pending) -> tuple[Pending, Logs, float]:
        """Train on a rollout, the next one beside it; returns it, losses and seconds."""
        began, timer = time.perf_counter(), self.profiler.train
        sampled = self.profiler.samples(self.epoch)
        with building:
            inputs = self.inputs(pending.rollout, self._draws(pending))
        usable = pending.builder is threading.current_thread()
        usable &= pending.numbers == self._numbers(self.epoch)
        built = pending.built if usable else None
        timer.lap("train_misc")
        more = self.epoch + 1 < self.config.epochs
        if self.placement.overlap and more and not self.collector.waiting:
            self.begin_rollout()
        observers = self._observers(pending.rollout, sampled)
        try:
            after, losses = self.learner.train(inputs, observers, self._go_on, built)
        except RuntimeError as error:
            after, losses = self._train_again(pending, inputs, sampled, error)
        rollout = self.collector.read(pending.rollout)
        logs, scores = self.ranks.meet(self.epoch, after.weights, rollout.logs, rollout.scores)
        losses |= self._ratios.error()
        if self.schedule is not None:
            losses["learning_rate"] = inputs.scheduled.lr.item()  # type: ignore
        elif self._rate is not None:
            losses["learning_rate"] = self._rate
            train, kl = self.config.train, losses.get("kl", math.nan)
            self._rate = schedules.adapted(self._rate, train.learning_rate, kl, train.desired_kl)
        following, self._following = self._following, None
        self.train_state, self.pending = after, following
        self.epoch += 1
        self.global_step += self.config.batch_size
        timer.lap("train_misc")
        seconds = time.perf_counter() - began - self._phases.extra
        late = min(rollout.late, seconds)
        timer.divide(sampled, late)
        self.profiler.rollout.charge("eval_act", late)
        # of a rollout that is launched ahead the host's part is in the epoch that launches it
        own = 0.0 if pending.ahead else rollout.seconds
        launched = min(following.rollout.seconds, seconds - late) if following else 0.0
        rollout = replace(rollout, logs=logs, scores=scores, seconds=own + launched + late)
        return replace(pending, rollout=rollout), losses, seconds - late - launched

    def _observers(self, rollout: Rollout, sampled: bool) -> list[Observer]:
        observers: list[Observer] = []
        # the ratios of opponents' rows would be no error
        comparable = not self.config.selfplay.train_on_opponents
        if comparable and self._ratios.begin(rollout, self.epoch):
            observers.append(self._ratios)
        if self._phases.begin(sampled):
            observers.append(self._phases)  # outermost: it times what others do, too
        return observers

    def _train_again(
        self, pending: Pending, inputs: EpochInputs, sampled: bool, error: RuntimeError
    ) -> tuple[TrainState, Logs]:
        """Train once more where the GPU's driver ended that, in smaller pieces; else the error.

        Raises:
            GPUError: it ended that, too. Nothing but the epoch is lost.
        """
        if ENDED not in str(error):
            raise error
        times = "once, and other ranks wait for no second try"
        if self.ranks.size == 1:
            times = "twice, at last step by step"
            with building:
                inputs = inputs._replace(draws=self._draws(pending))
            observers = [*self._observers(pending.rollout, sampled), computed]
            try:
                return self.learner.train(inputs, observers)
            except RuntimeError as again:
                if ENDED not in str(again):
                    raise
                error = again
        raise GPUError(
            f"macOS ended the GPU's training {times}: {error}",
            f"a smaller --train.minibatch-size (it is {self.config.train.minibatch_size}); or"
            f" {RELAX}",
        ) from None

    def _draws(self, pending: Pending) -> Draws:
        """Return the random numbers that choose a rollout's minibatches."""
        if pending.draws is None:
            key, draws = mx.random.split(self._key)
            # Kept after this step, and another thread can't evaluate what this one leaves lazy.
            # On Metal, a result computed beside training is lost if macOS stops the training.
            evaluate = mx.eval if backend() == "metal" else mx.async_eval
            evaluate(key, draws)
            self._key = key
            pending.draws = draws
        return self.learner.draws(self.ranks.key(pending.draws))


def _first_state(config: Config, policy: Policy, weights: Any) -> tuple[mx.array, TrainState]:
    """The random key, and what training changes, before the first epoch."""
    init, key = mx.random.split(mx.random.key(config.base.seed))
    weights = policy.init(init) if weights is None else weights
    optimizer = optimizers.of(config).init(weights)
    state = TrainState(weights, optimizer, precision.first_scaler(config.train.precision))
    refuse_state(sum(array.nbytes for array in leaves(state.arrays())), training_memory())
    mx.eval(key, *state.arrays())
    return key, state


def _first_ratios_are_one(config: Config, policy: Policy, placement: Placement) -> bool:
    """Whether an epoch's first minibatch has ratios of 1 but for rounding."""
    # If a minibatch is trained from the states that its rollout began with, by the weights that
    # acted, the first one's ratios are 1 but for rounding.
    carries = not config.base.reset_state and bool(named(policy.initial_state(1)))
    same = not carries or config.facts.carries_state
    return same and not placement.overlap
