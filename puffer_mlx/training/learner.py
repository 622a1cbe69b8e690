"""Training on rollouts.

``Learner.prepare`` returns an epoch's ``Update``. ``Update.submit`` starts its minibatches on the
device, and ``Update.wait`` returns their metrics. An update runs in one of three ways, which give
equal results:

    minibatches   one after the other; the device computes one while Python builds the next
    a graph       all minibatches as one compiled function: on CUDA, in epochs without profiling
    at once       all minibatches as one operation: ``Algorithm.at_once``, small MLPs on a CPU

The first two run ``run_minibatches``, which calls the loss through ``functions.gradients``:
``gradients.minibatch_loss``, differentiated by MLX.
"""

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.distributed.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.ops import take_rows, verification
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import algorithms, precision
from puffer_mlx.ppo.algorithms import Algorithm, Epoch, Scheduled
from puffer_mlx.ppo.gradients import logprobs
from puffer_mlx.ppo.sections import Fields, Minibatch, rpo_noise
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
from puffer_mlx.rollout.on_gpu import WATCHDOG_ERROR, WATCHDOG_HINT, GPUError
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.placement import Placement
from puffer_mlx.training.reader import Reader, TrainedAgents
from puffer_mlx.training.results import EpochResults, Health
from puffer_mlx.trees import named_arrays

BACKWARD = "train_backward"


class Learner:
    """Prepares the updates of a run, and holds the functions and devices that they share.

    Args:
        config: a valid configuration.
        policy: the policy to train.
        placement: devices that act and train.
        timer: measures the phases ``train_*`` of profiled epochs.
        ranks: processes that train together.
        trained_agents: selection of the agents to train on. None for all.

    Attributes:
        local: configuration of this process.
        algorithm: defines the minibatches and their loss.
        functions: compiled functions of an update. They may be replaced between two epochs. Then
            also set ``graph`` to None, because it contains the old ones.
        graph: an epoch as one compiled function. None with several ranks, with a limit of the KL,
            or if it would store too much. ``Update.fits_graph`` decides for each epoch.
        unverified: ``epoch_in_graph``, not compiled. Called once to verify its kernels, then None.
        reader: loads rollouts onto the training device.
        health: checks that results are finite.
        update: the update in progress, or the last one.
        first_ratios_are_one: True if the first minibatch of an epoch is trained with the weights
            and the recurrent states that acted, so that its ratios are 1, apart from rounding.
        measured_forward: True after the first measurement of a forward pass, which compiles it.
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
        local = ranks.local_config(config)
        agents = trained_agents.count if trained_agents else local.vec.total_agents
        one_cpu = placement.learner == mx.cpu and ranks.size == 1
        self.config = config
        self.local = local
        self.policy = policy
        self.ranks = ranks
        self.trained_agents = trained_agents
        self.timer = timer
        self.algorithm = algorithms.make(policy, local, agents, one_cpu)
        summed = partial(ranks.average_gradients, normalised=self.algorithm.normalises)
        self.functions = compile_update(policy, local, self.algorithm, summed)
        self.functions.gradients = ranks.count_progress(self.functions.gradients)
        kind = config.train.precision
        raw = partial(logprobs, policy, kind)
        context = f"log-probabilities {policy}"
        verified = partial(verification.verified, raw, context=context, kind=kind)
        self.logprobs = verified(mx.compile(raw))
        gather = self.functions.steps["gather"].function
        self.reader = Reader(gather, self.logprobs, placement, local, trained_agents)
        self.health = Health(config, self.algorithm.metrics)
        self.update: Update | None = None
        carries = not config.base.reset_state and bool(named_arrays(policy.initial_state(1)))
        same_states = not carries or config.facts.carries_state
        self.first_ratios_are_one = same_states and not placement.overlap
        self.measured_forward = False
        self.graph: Callable[..., Any] | None = None
        self.unverified: Callable[..., Any] | None = None
        if ranks.size == 1 and self.algorithm.largest_kl == math.inf:
            functions = update_in_graph(policy, local, self.algorithm)
            forward = functions.steps["gather"].function, verified(raw)
            recompute = partial(self.reader.recompute, functions=forward)
            self.unverified = partial(epoch_in_graph, self.algorithm, functions, local, recompute)
            self.graph = mx.compile(self.unverified)

    def prepare(
        self,
        rollout: Rollout,
        before: TrainState,
        scheduled: Scheduled,
        key: mx.array,
        epoch: int,
        profiled: bool = False,
    ) -> "Update":
        """Return the update on a rollout without computing it.

        Builds the update's graph if it can have one. The first build is the exception: it computes
        the update once to verify the kernels, and drops the result. Rollout and state may still be
        in progress on the device.

        Args:
            rollout: the rollout to train on. Nothing may write to it until the update is done.
            before: weights and optimizer state to start from.
            scheduled: the epoch's coefficients.
            key: random key of the update.
            epoch: number of the epoch, from 0.
            profiled: True to evaluate after each phase and charge its time.
        """
        # The first minibatch's ratios should be 1. If other weights acted, this check costs another
        # forward pass, so it is made every PROFILE_EVERY epochs. Ratios of opponents' actions and
        # of actions that RPO shifted always differ from 1.
        checks_ratios = self.first_ratios_are_one or epoch % PROFILE_EVERY == 1
        if self.config.selfplay.train_on_opponents or self.local.train.rpo_alpha:
            checks_ratios = False
        update = Update(self, rollout, before, scheduled, key, checks_ratios, profiled)
        if not self.reader.copies and update.fits_graph():
            update.build_graph(rollout.buffer.fields)
        return update

    def draw(self, key: mx.array) -> tuple[mx.array, mx.array | None]:
        """Return an update's random numbers: those of the algorithm, and RPO's noise or None."""
        draws = self.algorithm.draws(key)
        train = self.local.train
        if not train.rpo_alpha:
            return draws, None
        heads = self.policy.decoder.action.heads
        with building:
            noise = rpo_noise(
                train.rpo_alpha, self.local.minibatches, train.minibatch_size, heads, key
            )
        return draws, noise

    @property
    def progress(self) -> float | None:
        """``Update.progress`` of the current update, for any thread. None without an update."""
        update = self.update  # the training thread may replace the attribute
        return None if update is None else update.progress


class Update:
    """One epoch of training on one rollout. ``Learner.prepare`` returns it.

    Args:
        learner: the learner that prepared the update.
        rollout: the rollout to train on.
        before: weights and optimizer state to start from.
        scheduled: the epoch's coefficients.
        key: random key of the update.
        checks_ratios: True to report how far the first minibatch's ratios are from 1.
        profiled: True to evaluate after each phase and charge its time.

    Attributes:
        state: state after the update, perhaps still in progress on the device. It is ``before``
            until the update is submitted or its graph is built.
        results: results of the minibatches.
        retrying: True after macOS stopped a command of the GPU: see ``_retry``.
        is_graph: True if the epoch is one compiled function.
        extra_seconds: seconds spent on measuring.
    """

    def __init__(
        self,
        learner: Learner,
        rollout: Rollout,
        before: TrainState,
        scheduled: Scheduled,
        key: mx.array,
        checks_ratios: bool,
        profiled: bool,
    ) -> None:
        self.learner = learner
        self.rollout = rollout
        self.before = before
        self.scheduled = scheduled
        self.key = key
        self.checks_ratios = checks_ratios
        self.profiled = profiled
        self.retrying = False
        self.draws, self.noise = learner.draw(key)
        self.state = before
        self.results = EpochResults()
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
        """Start the update. Doesn't wait for it, except with a KL limit, profiled or retried."""
        algorithm = self.learner.algorithm
        self.learner.update = self
        try:
            if not self.is_graph:  # else ``prepare`` has built the graph
                fields = self._copied_fields()
                if not (self.fits_graph() and self.build_graph(fields)):
                    epoch = self._epoch(self._recomputed(fields))
                    results = self.results
                    if algorithm.at_once is None:
                        self.state = run_minibatches(
                            algorithm, epoch, self.before, results, self._observe_first
                        )
                    else:
                        *after, advantages, metrics, ok = algorithm.at_once(epoch, *self.before)
                        self.state = TrainState(*after)
                        results.add(self.state, advantages, metrics, ok)
                    ratios = results.first_ratios if self.checks_ratios else None
                    with building:
                        results.pack(self.state, ratios)
            mx.async_eval(*self.state, self.results.packed)
        except RuntimeError as error:
            self._retry(error)

    def wait(self) -> dict[str, float]:
        """Wait until the update is computed.

        Returns:
            The metrics, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row were not finite, or the weights are not finite.
            GPUError: macOS stopped a command of the GPU, and again when it was retried.
        """
        while True:
            try:
                return self.learner.health.check(self.rollout, self.state, self.results)
            except RuntimeError as error:
                self._retry(error)

    def _epoch(self, fields: Fields) -> Epoch:
        """Return the inputs of the minibatches, from the arrays of a rollout by name."""
        learner = self.learner
        finals = self.rollout.buffer.last_rows
        if learner.trained_agents is not None:
            finals = learner.trained_agents.finals(finals)
        return Epoch(
            functions=learner.functions,
            fields=fields,
            draws=self.draws,
            scheduled=self.scheduled.as_arrays(),
            states=partial(learner.reader.first_states, self.rollout),
            trainable=partial(trainable_steps, finals, *fields["actions"].shape[:2]),
            noise=self.noise,
            lap=self.lap if self.profiled or self.retrying else None,
        )

    def _copied_fields(self) -> Fields:
        """Return the rollout's arrays on the training device."""
        fields = self.rollout.buffer.fields
        if self.learner.reader.copies:
            fields = self.learner.reader.copy(fields)
            self.lap("train_copy", fields)
        return fields

    def _recomputed(self, fields: Fields) -> Fields:
        """Return the rollout's arrays with the log-probabilities that training computes."""
        reader = self.learner.reader
        if reader.away:
            states = reader.first_states(self.rollout)
            fields = reader.recompute(fields, self.rollout.weights, states)
            self.lap("train_recompute", fields)
        return fields

    @property
    def progress(self) -> float | None:
        """The submitted fraction of the minibatches. None if they are submitted at once."""
        if self.is_graph or self.learner.algorithm.at_once is not None:
            return None
        return len(self.results.minibatches) / self.learner.local.minibatches

    def fits_graph(self) -> bool:
        """Return True if the epoch may be one compiled function; ``build_graph`` may refuse."""
        return (
            self.learner.graph is not None
            and backend() == "cuda"
            and not (self.profiled or self.retrying)
            and not (self.checks_ratios and not self.learner.first_ratios_are_one)
            and self.learner.algorithm.at_once is None
            and self.noise is None
            and self.rollout.buffer.last_rows is None
        )

    def build_graph(self, fields: Fields) -> bool:
        """Build the epoch as one compiled function. Returns False if it would store too much.

        Without a graph, the host would take longer to launch a minibatch than the GPU takes to
        compute it.
        """
        learner = self.learner
        states = learner.reader.first_states(self.rollout)
        acted = self.rollout.weights if learner.reader.away else None
        inputs = fields, states, acted, self.draws, tuple(self.scheduled.as_arrays())
        assert learner.graph is not None
        try:
            with building:
                if learner.unverified is not None and verification.applies():
                    learner.unverified(self.checks_ratios, *inputs, *self.before)
                    learner.unverified = None
                trees, packed, arrays = learner.graph(self.checks_ratios, *inputs, *self.before)
        except TooLarge:
            learner.graph = None
            return False
        self.state = TrainState(*trees)
        self.results.minibatches = [(ok, metrics, adv) for ok, metrics, adv in arrays]
        self.results.packed = packed
        self.results.has_ratios = self.checks_ratios
        self.is_graph = True
        return True

    def _observe_first(self, minibatch: Minibatch, rows: mx.array | None) -> None:
        """Measure the first minibatch: the time of its forward pass, and its ratios.

        A ratio is the probability of an action, computed again with the weights that acted, over
        the recorded probability. It should be 1.

        Args:
            minibatch: the first minibatch of the epoch.
            rows: ``Epoch.rows``.
        """
        if self.profiled:
            self._measure_forward(minibatch)
        if self.checks_ratios and not self.learner.first_ratios_are_one:
            self.results.first_ratios = self._ratios_as_acted(minibatch, rows)

    def lap(self, phase: str, result: Any) -> None:
        """Evaluate a result in a profiled epoch and charge the time to its phase.

        If an epoch is retried, its results are evaluated too. Other epochs aren't interrupted.
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

    def _measure_forward(self, minibatch: Minibatch) -> None:
        """Time the forward pass of a minibatch alone, from the initial states."""
        began = time.perf_counter()
        learner = self.learner
        minibatch = minibatch._replace(targets=None, state=None)
        for _ in range(1 if learner.measured_forward else 2):  # the first call compiles
            start = time.perf_counter()
            with building:
                logprobs = learner.logprobs(self.before.weights, minibatch)
            mx.eval(logprobs)
            self._forward_seconds = time.perf_counter() - start
        learner.measured_forward = True
        self.extra_seconds += time.perf_counter() - began
        learner.timer.start()

    def _ratios_as_acted(self, minibatch: Minibatch, rows: mx.array | None) -> mx.array:
        """Return ratios (T, S) by the weights that acted, from the recurrent states that acted."""
        state = minibatch.state
        reader = self.learner.reader
        if state is None and rows is not None:
            states = reader.first_states(self.rollout)
            with building:
                state = states and tree_map(
                    lambda a: take_rows(a[None], rows, 1).squeeze(0), states
                )
        acted = reader.behaviour(self.rollout, state, minibatch)
        with building:
            return mx.exp(acted - minibatch.targets.old_logprob.reshape(acted.shape))

    def _retry(self, error: RuntimeError) -> None:
        """Run the update again, phase by phase, after macOS stopped a command of the GPU.

        Raises:
            RuntimeError: another error than that.
            GPUError: macOS stopped the second attempt, too. The next step repeats the update.
        """
        if WATCHDOG_ERROR not in str(error):
            raise error
        times = "twice, at last step by step" if self.retrying else "once"
        if self.learner.ranks.size > 1:
            times += " (with several processes it isn't tried again)"
        if times == "once":
            self.retrying = True
            self.is_graph = False
            self.results = EpochResults()
            self.extra_seconds = 0.0
            with building:
                self.draws, self.noise = self.learner.draw(self.key)
            self.submit()
            return
        size = self.learner.config.train.minibatch_size
        raise GPUError(
            f"macOS ended the GPU's training {times}: {error}",
            f"a smaller --train.minibatch-size (it is {size}); or {WATCHDOG_HINT}",
        ) from None


def run_minibatches(
    algorithm: Algorithm,
    epoch: Epoch,
    state: TrainState,
    results: EpochResults,
    observe: Callable[[Minibatch, Any], None] | None = None,
) -> TrainState:
    """Train on an epoch's minibatches, one after the other, and return the state after them.

    The first minibatch whose KL exceeds ``algorithm.largest_kl`` ends the epoch, without a step.
    Unless that limit is infinite, each minibatch is waited for, because its KL must be known.

    Args:
        algorithm: generates the minibatches.
        epoch: inputs of the minibatches.
        state: weights, optimizer state and loss scaling before the epoch.
        results: receives the results of each minibatch.
        observe: called with the first minibatch and ``Epoch.rows`` before its gradients.
    """
    functions = epoch.functions
    scheduled = epoch.scheduled
    for k, minibatch in enumerate(algorithm.minibatches(epoch)):
        if epoch.noise is not None:
            with building:
                minibatch = minibatch._replace(actions=minibatch.actions - epoch.noise[k])
        if k == 0 and observe is not None:
            observe(minibatch, epoch.rows)
        with building:
            (_, metrics, ratios, values, advantages), grads = functions.gradients(
                state.weights,
                minibatch,
                scheduled.ent_coef,
                state.scaler["scale"],
                scheduled.loss,
            )
        if epoch.lap is not None:
            epoch.lap(BACKWARD, (grads, metrics, ratios, values, advantages))
        if results.first_ratios is None:
            results.first_ratios = ratios
        if algorithm.largest_kl < math.inf:
            computed: Any = metrics.tolist()
            if computed[algorithm.metrics.index("kl")] > algorithm.largest_kl:
                with building:
                    finite = mx.isfinite(metrics).all()
                results.add(state, advantages, metrics, finite)
                break
        with building:
            *after, ok = functions.optimise(*state, grads, metrics, scheduled.lr)
        if epoch.lap is not None:
            epoch.lap("train_optimizer", (after, ok))
        state = TrainState(*after)
        epoch.trained = values, ratios, ok
        results.add(state, advantages, metrics, ok, values, ratios)
    return state


def epoch_in_graph(
    algorithm: Algorithm,
    functions: UpdateFunctions,
    config: Config,
    recompute: Callable[..., Fields],
    checks_ratios: bool,
    fields: Fields,
    states: Any,
    acted: Any,
    draws: mx.array,
    scheduled: tuple[Any, ...],
    *before: Any,
) -> Any:
    """Compute an entire epoch. ``Learner.graph`` is this function, compiled.

    Args:
        algorithm: generates the minibatches.
        functions: functions of an update, not compiled.
        config: configuration of this process.
        recompute: ``Reader.recompute`` with functions that aren't compiled.
        checks_ratios: True to report how far the first minibatch's ratios are from 1.
        fields: the arrays of a rollout by name.
        states: recurrent states of the agents at the start of the rollout, or None.
        acted: the weights that acted if ``recompute`` is needed, else None.
        draws: random numbers from ``Algorithm.draws``.
        scheduled: the fields of ``Scheduled.as_arrays()``.
        before: the fields of ``TrainState``.

    Returns:
        The fields of the new TrainState, packed results, and the results of each minibatch.
    """
    if acted is not None:
        fields = recompute(fields, acted, states)
    epoch = Epoch(
        functions=functions,
        fields=fields,
        draws=draws,
        scheduled=Scheduled(*scheduled),
        states=lambda: states,
        trainable=partial(trainable_steps, None, *fields["actions"].shape[:2]),
    )
    results = EpochResults(traced=True)
    after = run_minibatches(algorithm, epoch, TrainState(*before), results)
    if counts_at_once(config):
        flags = [ok for ok, *_ in results.minibatches]
        scaler = precision.count_all(after.scaler, flags, config.train.precision)
        after = after._replace(scaler=scaler)
    packed = results.pack(after, results.first_ratios if checks_ratios else None)
    return tuple(after), packed, [list(arrays) for arrays in results.minibatches]


def trainable_steps(finals: np.ndarray | None, steps: int, agents: int) -> np.ndarray:
    """Return the mask of steps to train on, (T, N) bool: see ``ppo/sections.py``.

    The last step is excluded, because the reward of its action isn't known. If no step remains,
    all steps are included so that minibatches aren't empty; their advantages are 0.

    Args:
        finals: (T + 1, N), non-zero for final observations of episodes, or None.
        steps: Number of steps T.
        agents: Number of agents N.
    """
    mask = np.ones((steps, agents), bool) if finals is None else finals[:steps] == 0
    mask[-1] = False
    return mask if mask.any() else ~mask
