"""Training on rollouts.

``Learner.prepare`` returns an epoch's ``Update``; ``Update.submit`` starts its minibatches on the
device, and ``Update.wait`` returns their metrics. An update runs in one of three ways, which give
equal results:

    minibatches   one after the other; the device computes one while Python builds the next
    a graph       all minibatches as one compiled function: on CUDA, in epochs without profiling
    at once       all minibatches as one operation: ``Algorithm.at_once``, small MLPs on a CPU
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.ops import take_rows, verification
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import algorithms, precision
from puffer_mlx.ppo.algorithms import Algorithm, Epoch, Scheduled
from puffer_mlx.ppo.gradients import logprobs
from puffer_mlx.ppo.sections import Fields, MeanNoise, MinibatchInputs
from puffer_mlx.ppo.update import (
    TooLarge,
    TrainState,
    UpdateFunctions,
    compile_update,
    counts_at_once,
    update_in_graph,
)
from puffer_mlx.profiling.phases import PROFILE_EVERY, PhaseTimer
from puffer_mlx.profiling.timeline import LEARNING
from puffer_mlx.rollout.on_gpu import ENDED, RELAX, GPUError
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.placement import Placement
from puffer_mlx.training.reader import Reader, TrainedAgents
from puffer_mlx.training.results import Health, Results
from puffer_mlx.trees import named

BACKWARD = "train_backward"
RPO = 0x52504F  # makes the key of RPO's noise differ from the update's


class Learner:
    """Prepares the updates of a run, and holds the functions and devices that they share.

    Args:
        config: A valid configuration.
        policy: The trained policy.
        placement: Devices that act and train.
        timer: Measures the phases ``train_*`` of profiled epochs.
        ranks: Processes that train together.
        trained_agents: Selection of the agents to train on; None for all.

    Attributes:
        algorithm: decides what minibatches are, and their loss.
        functions: compiled functions of an update. They may be replaced between two epochs; a
            graph doesn't call them, so ``graph`` must be None then.
        graph: an epoch as one compiled function; None with several ranks or a limit of the KL, or
            if it would store too much. ``Update.fits_graph`` decides for each epoch.
        unverified: The epoch function until its kernels are verified by a call, then None.
        reader: loads rollouts onto the device that trains.
        health: checks that results are finite.
        update: the update in progress, or the last one.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        placement: Placement,
        timer: PhaseTimer,
        ranks: SingleProcess = SINGLE_PROCESS,
        trained_agents: TrainedAgents | None = None,
    ) -> None:
        local = ranks.own(config)
        agents = trained_agents.count if trained_agents else local.vec.total_agents
        one_cpu = placement.learner == mx.cpu and ranks.size == 1
        self.config = config
        self.ranks = ranks
        self.trained_agents = trained_agents
        self.timer = timer
        self.minibatches = local.minibatches  # K of an epoch
        self.algorithm = algorithms.make(policy, local, agents, one_cpu)
        summed = partial(ranks.summed, normalised=self.algorithm.normalises)
        self.functions = compile_update(policy, local, self.algorithm, summed)
        self.functions.gradients = ranks.counted(self.functions.gradients)
        self.logprobs = mx.compile(partial(logprobs, policy, config.train.precision))
        self.reader = Reader(self.functions.gather, self.logprobs, placement, local, trained_agents)
        self.health = Health(config, self.algorithm.metrics)
        self.update: Update | None = None
        self.first_ratios_are_one = first_ratios_are_one(config, policy, placement)
        self.measured_forward = False
        self.graph: Callable[..., Any] | None = None
        self.unverified: Callable[..., Any] | None = None
        if ranks.size == 1 and self.algorithm.largest_kl == math.inf:
            functions = update_in_graph(policy, local, self.algorithm)
            self.graph = mx.compile(partial(self._epoch_in_graph, functions))
            self.unverified = partial(self._epoch_in_graph, functions)

    def prepare(
        self,
        rollout: Rollout,
        before: TrainState,
        scheduled: Scheduled,
        key: mx.array,
        epoch: int,
        profiled: bool = False,
    ) -> "Update":
        """Return the update on a rollout. Nothing is computed yet; a graph is built if it can be.

        Rollout and state need not be computed either, so an update can be prepared while the device
        works on them.

        Args:
            rollout: the rollout to train on. Nothing may write to it until the update is done.
            before: weights and optimizer state to start from.
            scheduled: the epoch's learning rate, entropy bonus and exponent of priorities.
            key: random key of the update.
            epoch: number of the epoch, from 0.
            profiled: evaluate after each phase and charge its time.
        """
        observed = self.first_ratios_are_one or epoch % PROFILE_EVERY == 1
        # An opponent's ratios, if its rows are trained on, are not 1, and that is no error.
        compares = observed and not self.config.selfplay.train_on_opponents
        update = Update(self, rollout, before, scheduled, key, compares, profiled)
        if self.reader.is_noop and update.fits_graph():
            update.build_graph(rollout.buffer.fields)
        return update

    def draw(self, key: mx.array) -> tuple[mx.array, MeanNoise | None]:
        """Return an update's random numbers: what decides the minibatches, and RPO's noise."""
        drawn, alpha = self.algorithm.draws(key), self.config.train.rpo_alpha
        if not alpha:
            return drawn, None
        with building:  # a key beside those that the algorithm may have split this one into
            return drawn, MeanNoise(alpha, key ^ mx.array(RPO, mx.uint32))

    @property
    def progress(self) -> float | None:
        """The submitted fraction of the update's minibatches, for any thread, or None."""
        update = self.update  # the training thread may replace it
        return None if update is None else update.progress

    def _epoch_in_graph(
        self,
        functions: UpdateFunctions,
        compares: bool,
        fields: Fields,
        states: Any,
        draws: mx.array,
        scheduled: tuple[mx.array, ...],
        *before: Any,
    ) -> Any:
        """Compute an entire epoch; ``graph`` is this function, compiled.

        Returns:
            The arrays of the new TrainState, packed results, and the arrays of each minibatch.
        """
        learned = partial(learned_from, None, *fields["actions"].shape[:2])
        epoch = Epoch(functions, fields, draws, Scheduled(*scheduled), lambda: states, learned)
        results = Results(traced=True)
        after = run_minibatches(self.algorithm, epoch, TrainState(*before), results)
        if counts_at_once(self.config):
            kind = self.config.train.precision
            scaler = precision.count_all(after.scaler, results.counted, kind)
            after = after._replace(scaler=scaler)
        packed = results.pack(after, results.first_ratios if compares else None)
        return tuple(after), packed, [[*each] for each in results.minibatches]


class Update:
    """One epoch of training on one rollout; ``Learner.prepare`` makes it.

    Args:
        learner: The learner that prepared the update.
        rollout: The rollout to train on.
        before: Weights and optimizer state to start from.
        scheduled: Learning rate, entropy bonus and exponent of priorities.
        key: Random key of the update.
        compares: True to report how far the first minibatch's ratios are from 1.
        profiled: True to evaluate after each phase and charge its time.

    Attributes:
        state: State after the update, perhaps not computed yet; ``before`` until the update is
            submitted or its graph is built.
        results: Results of the minibatches.
        extra_seconds: Time spent on measuring, in seconds.
    """

    def __init__(
        self,
        learner: Learner,
        rollout: Rollout,
        before: TrainState,
        scheduled: Scheduled,
        key: mx.array,
        compares: bool,
        profiled: bool,
    ) -> None:
        self.learner, self.rollout, self.before = learner, rollout, before
        self.scheduled, self.key = scheduled, key
        self.compares, self.profiled, self.retrying = compares, profiled, False
        self.draws, self.noise = learner.draw(key)
        self.state, self.results = before, Results()
        self.is_graph = False
        self.extra_seconds = 0.0
        self._forward_seconds = 0.0
        self._prepared_by = threading.current_thread()

    def is_for(self, rollout: Rollout, before: TrainState, scheduled: Scheduled) -> bool:
        """Return True if the update was prepared for these, by the calling thread.

        Another thread couldn't evaluate its lazy arrays.
        """
        same = self.rollout is rollout and self.before is before and self.scheduled == scheduled
        return same and self._prepared_by is threading.current_thread()

    def submit(self) -> None:
        """Start the update on the device. Returns before it is computed."""
        self.learner.update = self
        try:
            self.run()
        except RuntimeError as error:
            self._retry(error)

    def wait(self) -> dict[str, float]:
        """Wait until the update is computed.

        Returns:
            Its metrics, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row were not finite, or weights aren't any more.
            GPUError: macOS ended the computation, and the retry in smaller pieces, too.
        """
        while True:
            try:
                return self.learner.health.check(self.rollout, self.state, self.results)
            except RuntimeError as error:
                self._retry(error)

    def run(self) -> None:
        """Start the update in one of its three ways; ``submit`` retries this on a Mac."""
        learner, algorithm = self.learner, self.learner.algorithm
        fields = None if self.is_graph else self._load_fields()
        if fields is not None and self.fits_graph():
            self.build_graph(fields)
        if self.is_graph:
            mx.async_eval(*self.state, self.results.packed)
            return
        finals = self.rollout.buffer.last_rows
        if learner.trained_agents is not None:
            finals = learner.trained_agents.finals(finals)
        assert fields is not None
        epoch = Epoch(
            *(learner.functions, fields, self.draws, self.scheduled.as_arrays()),
            states=partial(learner.reader.first_states, self.rollout),
            learned=partial(learned_from, finals, *fields["actions"].shape[:2]),
            noise=self.noise,
            lap=self.lap if self.profiled or self.retrying else None,
        )
        self.results = results = Results()
        if algorithm.at_once is None:
            algorithm = algorithm._replace(minibatches=self._minibatches)
            self.state = run_minibatches(algorithm, epoch, self.before, results)
        else:
            *after, adv, metrics, ok = algorithm.at_once(epoch, *self.before)
            self.state = TrainState(*after)
            results.add(self.state, adv, metrics, ok)
        with building:
            packed = results.pack(self.state, results.first_ratios if self.compares else None)
        mx.async_eval(packed)

    def _load_fields(self) -> Fields:
        """Return the rollout on the device that trains, with log-probabilities as training's."""
        reader, fields = self.learner.reader, self.rollout.buffer.fields
        copied = reader.copy(fields)
        if copied is not fields:
            self.lap("train_copy", copied)
        loaded = reader.recompute(copied, self.rollout)
        if loaded is not copied:
            self.lap("train_recompute", loaded)
        return loaded

    @property
    def progress(self) -> float | None:
        """The submitted fraction of the minibatches, or None where all are submitted at once."""
        if self.is_graph or self.learner.algorithm.at_once is not None:
            return None
        return self.results.count / self.learner.minibatches

    def fits_graph(self) -> bool:
        """Return True if the epoch can be one compiled function."""
        return (
            self.learner.graph is not None
            and backend() == "cuda"
            and not (self.profiled or self.retrying)
            and not (self.compares and not self.learner.first_ratios_are_one)
            and self.learner.algorithm.at_once is None
            and self.noise is None
            and self.rollout.buffer.last_rows is None
        )

    def build_graph(self, fields: Fields) -> None:
        """Build the epoch as one compiled function, unless its minibatches store too much.

        Without a graph, the host would take longer to launch a minibatch than the GPU to compute
        it.
        """
        learner = self.learner
        states = learner.reader.first_states(self.rollout)
        inputs = fields, states, self.draws, tuple(self.scheduled.as_arrays())
        assert learner.graph is not None
        try:
            with building:
                if learner.unverified is not None and verification.applies():
                    learner.unverified(self.compares, *inputs, *self.before)
                    learner.unverified = None
                trees, packed, arrays = learner.graph(self.compares, *inputs, *self.before)
        except TooLarge:
            learner.graph = None
            return
        self.state = TrainState(*trees)
        self.results = Results.of_graph(packed, arrays, self.state, self.compares)
        self.is_graph = True

    def _minibatches(self, epoch: Epoch) -> Iterator[MinibatchInputs]:
        """Yield the algorithm's minibatches with RPO's noise, and observe the first one."""
        learner, noise = self.learner, None
        for k, minibatch in enumerate(learner.algorithm.minibatches(epoch)):
            if self.noise is not None:
                inputs, K = minibatch.inputs, learner.minibatches
                with building:
                    noise = self.noise.draw(K, inputs.actions.shape) if noise is None else noise
                    moved = inputs._replace(actions=inputs.actions - noise[k])
                    minibatch = minibatch._replace(inputs=moved)
            if k == 0 and self.profiled:
                self._measure_forward(minibatch)
            if k == 0 and self.compares and not learner.first_ratios_are_one:
                self.results.first_ratios = self._ratios_as_acted(minibatch, epoch.rows)
            yield minibatch

    def lap(self, phase: str, result: Any) -> None:
        """In a profiled epoch, evaluate a result and charge the time to its phase.

        An epoch that is tried again is only evaluated, phase by phase; others are not.
        """
        if not (self.profiled or self.retrying):
            return
        began = time.perf_counter()
        mx.eval(result)
        if not self.profiled:
            return
        timer = self.learner.timer
        timer.lap(phase, LEARNING)
        if phase == BACKWARD and self._forward_seconds:
            rest = max(0.0, time.perf_counter() - began - self._forward_seconds)
            timer.split(BACKWARD, {"train_forward": self._forward_seconds, BACKWARD: rest})
            self._forward_seconds = 0.0

    def _measure_forward(self, minibatch: MinibatchInputs) -> None:
        """Time the forward pass of a minibatch alone."""
        began = time.perf_counter()
        inputs, learner = minibatch.inputs, self.learner
        for _ in range(1 if learner.measured_forward else 2):  # the first call compiles
            start = time.perf_counter()
            with building:
                logprobs = learner.logprobs(self.before.weights, *inputs, None)
            mx.eval(logprobs)
            self._forward_seconds = time.perf_counter() - start
        learner.measured_forward = True
        self.extra_seconds += time.perf_counter() - began
        learner.timer.start()

    def _ratios_as_acted(self, minibatch: MinibatchInputs, rows: mx.array | None) -> mx.array:
        """Return ratios (T, S) by the weights, and from the recurrent states, that acted."""
        inputs, targets, state = minibatch
        reader = self.learner.reader
        if state is None and rows is not None:
            states = reader.first_states(self.rollout)
            with building:
                state = states and tree_map(
                    lambda a: take_rows(a[None], rows, 1).squeeze(0), states
                )
        acted = reader.behaviour(self.rollout, state, tuple(inputs))
        with building:
            return mx.exp(acted - targets.old_logprob.reshape(acted.shape))

    def _retry(self, error: RuntimeError) -> None:
        """Run the update again, step by step, after macOS ended what the GPU computed.

        Raises:
            RuntimeError: it was another error.
            GPUError: macOS ended the second try, too. Nothing but the epoch is lost.
        """
        if ENDED not in str(error):
            raise error
        times = "twice, at last step by step" if self.retrying else "once"
        if self.learner.ranks.size > 1:
            times += ", and other ranks wait for no second try"
        if times == "once":
            self.retrying, self.is_graph, self.extra_seconds = True, False, 0.0
            with building:
                self.draws, self.noise = self.learner.draw(self.key)
            self.submit()
            return
        size = self.learner.config.train.minibatch_size
        raise GPUError(
            f"macOS ended the GPU's training {times}: {error}",
            f"a smaller --train.minibatch-size (it is {size}); or {RELAX}",
        ) from None


def run_minibatches(
    algorithm: Algorithm, epoch: Epoch, state: TrainState, results: Results
) -> TrainState:
    """Train on an epoch's minibatches, one after the other, and return the state after them.

    The first minibatch whose KL is more than ``algorithm.largest_kl`` ends the epoch, and no step
    is made with it. To know the KL, each minibatch is waited for unless that limit is infinite.
    """
    functions, scheduled = epoch.functions, epoch.scheduled
    for inputs, targets, recurrent in algorithm.minibatches(epoch):
        with building:
            grads, metrics, ratios, values, advantages = functions.gradients(
                *(state.weights, *inputs, targets, recurrent),
                *(scheduled.ent_coef, state.scaler["scale"]),
            )
        if epoch.lap is not None:
            epoch.lap(BACKWARD, (grads, metrics, ratios, values, advantages))
        if results.first_ratios is None:
            results.first_ratios = ratios
        if algorithm.largest_kl < math.inf and kl_of(algorithm, metrics) > algorithm.largest_kl:
            with building:
                finite = mx.isfinite(metrics).all()
            results.add(state, advantages, metrics, finite)
            break
        with building:
            *after, ok = functions.optimise(*state, grads, metrics, scheduled.lr)
        if epoch.lap is not None:
            epoch.lap("train_optimizer", (after, ok))
        changed = algorithm.write_back(epoch, ratios, values, ok)
        state = TrainState(*after)
        results.add(state, advantages, metrics, ok, *changed)
    return state


def kl_of(algorithm: Algorithm, metrics: mx.array) -> float:
    """Return a minibatch's KL, once it is computed."""
    numbers: Any = metrics.tolist()
    return numbers[algorithm.metrics.index("kl")]


def learned_from(finals: np.ndarray | None, steps: int, agents: int) -> np.ndarray:
    """Return the mask of steps to train on, (T, N) bool: see ``ppo/sections.py``.

    The last step is excluded, because the reward of its action isn't known. If no step remains,
    all steps are included so that minibatches aren't empty; their advantages are 0.

    Args:
        finals: (T + 1, N), non-zero where a row is an episode's last observation, or None.
        steps: Number of steps T.
        agents: Number of agents N.
    """
    learned = np.ones((steps, agents), bool) if finals is None else finals[:steps] == 0
    learned[-1] = False
    return learned if learned.any() else ~learned


def first_ratios_are_one(config: Config, policy: Policy, placement: Placement) -> bool:
    """Return True if an epoch's first minibatch has ratios of 1 but for rounding.

    It has if it is trained by the weights that acted, from the recurrent states that its rollout
    began with.
    """
    carries = not config.base.reset_state and bool(named(policy.initial_state(1)))
    same = not carries or config.facts.carries_state
    return same and not placement.overlap
