"""Define the learner, which trains a policy on rollouts.

``Learner.prepare`` returns an epoch's ``Update``. ``Update.submit`` starts its minibatches on the
device, and ``Update.wait`` returns their metrics. An update has three implementations with equal
results:

    minibatches   one by one; the device computes a minibatch while Python builds the next one
    graph         all minibatches in one compiled function; on CUDA, in epochs without profiling
    at once       all minibatches in one operation (``Algorithm.at_once``); small MLPs on a CPU

The first two call ``run_minibatches``. There ``functions.gradients`` computes the loss and its
gradients: ``gradients.minibatch_loss``, differentiated by MLX.
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
from puffer_mlx.ppo.gradients import minibatch_logprobs
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
from puffer_mlx.training.results import EpochResults, FiniteCheck
from puffer_mlx.trees import named_arrays

BACKWARD_PHASE = "train_backward"


class Learner:
    """Prepare a run's updates, and hold the compiled functions that the updates share.

    Args:
        config: a valid configuration.
        policy: the policy to train.
        placement: devices that act and train.
        timer: timer for the phases ``train_*`` of profiled epochs.
        ranks: processes that train together.
        trained_agents: selection of the agents to train on. None for all.

    Attributes:
        local: local configuration of this process.
        algorithm: defines the minibatches and their loss.
        functions: compiled functions of an update. To replace them between two epochs, also set
            ``graph`` to None, because it contains the old functions.
        graph: an epoch as one compiled function. None with several ranks, with a limit of the KL,
            or if it would store too much. ``Update.fits_graph`` decides for each epoch.
        unverified_graph: ``epoch_in_graph``, not compiled. Called once to verify its kernels, then
            None.
        reader: prepares rollouts on the training device.
        finite_check: checks that results are finite.
        update: the latest update; it may be in progress.
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
        raw = partial(minibatch_logprobs, policy, kind)
        context = f"log-probabilities {policy}"
        verified = partial(verification.verified, raw, context=context, kind=kind)
        self.logprobs = verified(mx.compile(raw))
        gather = self.functions.steps["gather"].function
        self.reader = Reader(gather, self.logprobs, placement, local, trained_agents)
        self.finite_check = FiniteCheck(config, self.algorithm.metrics)
        self.update: Update | None = None
        carries = not config.base.reset_state and bool(named_arrays(policy.initial_state(1)))
        same_states = not carries or config.facts.carries_state
        self.first_ratios_are_one = same_states and not placement.overlap
        self.measured_forward = False
        self.graph: Callable[..., Any] | None = None
        self.unverified_graph: Callable[..., Any] | None = None
        if ranks.size == 1 and self.algorithm.largest_kl == math.inf:
            functions = update_in_graph(policy, local, self.algorithm)
            forward = functions.steps["gather"].function, verified(raw)
            recompute = partial(self.reader.recompute, functions=forward)
            self.unverified_graph = partial(
                epoch_in_graph, self.algorithm, functions, local, recompute
            )
            self.graph = mx.compile(self.unverified_graph)

    def prepare(
        self,
        rollout: Rollout,
        state_before: TrainState,
        scheduled: Scheduled,
        key: mx.array,
        epoch: int,
        profiled: bool = False,
    ) -> "Update":
        """Prepare the training update on a rollout, without computing it.

        This builds the update's graph, if it can have one. Only the first graph is computed here
        once, to verify the kernels. Rollout and state may still be in progress on the device.

        Args:
            rollout: the rollout to train on. It must not change until the update is done.
            state_before: weights and optimizer state before the update.
            scheduled: the epoch's coefficients.
            key: random key of the update.
            epoch: number of the epoch, from 0.
            profiled: True to evaluate after each phase and charge its time.
        """
        # The first minibatch's ratios should be 1. If other weights acted, checking this costs
        # another forward pass, so only one in PROFILE_EVERY epochs is checked. Ratios of opponents'
        # actions and of actions shifted by RPO always differ from 1.
        checks_ratios = self.first_ratios_are_one or epoch % PROFILE_EVERY == 1
        if self.config.selfplay.train_on_opponents or self.local.train.rpo_alpha:
            checks_ratios = False
        update = Update(self, rollout, state_before, scheduled, key, checks_ratios, profiled)
        if not self.reader.copies and update.fits_graph():
            update.build_graph(rollout.buffer.fields)
        return update

    def draw(self, key: mx.array) -> tuple[mx.array, mx.array | None]:
        """Return an update's random numbers for choosing minibatches, and RPO's noise or None."""
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
        """Submitted fraction of the current update, or None (unknown). Any thread may read it."""
        update = self.update  # The training thread may replace the attribute.
        return None if update is None else update.progress


class Update:
    """An epoch's training on one rollout, prepared by ``Learner.prepare``.

    Args:
        learner: the learner that prepared the update.
        rollout: the rollout to train on.
        state_before: weights and optimizer state before the update.
        scheduled: the epoch's coefficients.
        key: random key of the update.
        checks_ratios: True to report how far the first minibatch's ratios are from 1.
        profiled: True to evaluate after each phase and charge its time.

    Attributes:
        state: state after the update, perhaps still in progress on the device. It equals
            ``state_before`` until the update is submitted or its graph is built.
        results: results of the minibatches.
        retrying: True after macOS stopped a GPU command: see ``_retry``.
        is_graph: True if the epoch is one compiled function.
        extra_seconds: seconds spent on measuring.
    """

    def __init__(
        self,
        learner: Learner,
        rollout: Rollout,
        state_before: TrainState,
        scheduled: Scheduled,
        key: mx.array,
        checks_ratios: bool,
        profiled: bool,
    ) -> None:
        self.learner = learner
        self.rollout = rollout
        self.state_before = state_before
        self.scheduled = scheduled
        self.key = key
        self.checks_ratios = checks_ratios
        self.profiled = profiled
        self.retrying = False
        self.draws, self.noise = learner.draw(key)
        self.state = state_before
        self.results = EpochResults()
        self.is_graph = False
        self.extra_seconds = 0.0
        self._forward_seconds = 0.0
        self._prepared_by = threading.current_thread()

    def is_for(self, rollout: Rollout, state_before: TrainState, scheduled: Scheduled) -> bool:
        """Return True if this prepared update is for these arguments and the calling thread.

        A thread can't evaluate another thread's lazy arrays.
        """
        return (
            self.rollout is rollout
            and self.state_before is state_before
            and self.scheduled == scheduled
            and self._prepared_by is threading.current_thread()
        )

    def submit(self) -> None:
        """Start computing this training update on the device.

        This returns before the update is computed, unless it has a KL limit, is profiled or
        retried.
        """
        algorithm = self.learner.algorithm
        self.learner.update = self
        try:
            if not self.is_graph:  # Otherwise ``prepare`` has built the graph.
                fields = self._copied_fields()
                if not (self.fits_graph() and self.build_graph(fields)):
                    epoch = self._epoch(self._recomputed(fields))
                    results = self.results
                    if algorithm.at_once is None:
                        self.state = run_minibatches(
                            algorithm, epoch, self.state_before, results, self._observe_first
                        )
                    else:
                        *state, advantages, metrics, ok = algorithm.at_once(
                            epoch, *self.state_before
                        )
                        self.state = TrainState(*state)
                        results.add(self.state, advantages, metrics, ok)
                    ratios = results.first_ratios if self.checks_ratios else None
                    with building:
                        results.pack(self.state, ratios)
            mx.async_eval(*self.state, self.results.packed)
        except RuntimeError as error:
            self._retry(error)

    def wait(self) -> dict[str, float]:
        """Wait until this training update is computed, and check its results.

        Returns:
            The metrics, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row were not finite, or the weights are not finite.
            GPUError: macOS stopped a GPU command, and again in the second attempt.
        """
        while True:
            try:
                return self.learner.finite_check.check(self.rollout, self.state, self.results)
            except RuntimeError as error:
                self._retry(error)

    def _epoch(self, fields: Fields) -> Epoch:
        """Return the inputs from which the minibatches of this update are made.

        ``fields`` are a rollout's arrays by name.
        """
        learner = self.learner
        final_observations = self.rollout.buffer.final_observation_rows
        if learner.trained_agents is not None:
            final_observations = learner.trained_agents.final_observations(final_observations)
        return Epoch(
            functions=learner.functions,
            fields=fields,
            draws=self.draws,
            scheduled=self.scheduled.as_arrays(),
            states=partial(learner.reader.first_states, self.rollout),
            trainable=partial(trainable_steps, final_observations, *fields["actions"].shape[:2]),
            noise=self.noise,
            lap=self.lap if self.profiled or self.retrying else None,
        )

    def _copied_fields(self) -> Fields:
        """Return the arrays of this update's rollout by name, on the device that trains."""
        fields = self.rollout.buffer.fields
        if self.learner.reader.copies:
            fields = self.learner.reader.copy(fields)
            self.lap("train_copy", fields)
        return fields

    def _recomputed(self, fields: Fields) -> Fields:
        """Return the rollout's arrays by name, with log-probabilities rounded as in training."""
        reader = self.learner.reader
        if reader.recomputes:
            states = reader.first_states(self.rollout)
            fields = reader.recompute(fields, self.rollout.weights, states)
            self.lap("train_recompute", fields)
        return fields

    @property
    def progress(self) -> float | None:
        """Submitted fraction of this update's minibatches; None if all are submitted together."""
        if self.is_graph or self.learner.algorithm.at_once is not None:
            return None
        return len(self.results.minibatches) / self.learner.local.minibatches

    def fits_graph(self) -> bool:
        """Return True if all minibatches of this update may be compiled as one function.

        ``build_graph`` may still refuse.
        """
        return (
            self.learner.graph is not None
            and backend() == "cuda"
            and not (self.profiled or self.retrying)
            and not (self.checks_ratios and not self.learner.first_ratios_are_one)
            and self.learner.algorithm.at_once is None
            and self.noise is None
            and self.rollout.buffer.final_observation_rows is None
        )

    def build_graph(self, fields: Fields) -> bool:
        """Build the graph of the entire epoch from one compiled function.

        Otherwise the host would take longer to launch a minibatch than the GPU takes to compute it.

        Returns:
            False if the graph would store too many activations.
        """
        learner = self.learner
        states = learner.reader.first_states(self.rollout)
        acted = self.rollout.weights if learner.reader.recomputes else None
        inputs = fields, states, acted, self.draws, tuple(self.scheduled.as_arrays())
        assert learner.graph is not None
        try:
            with building:
                if learner.unverified_graph is not None and verification.uses_gpu_kernels():
                    learner.unverified_graph(self.checks_ratios, *inputs, *self.state_before)
                    learner.unverified_graph = None
                trees, packed, arrays = learner.graph(
                    self.checks_ratios, *inputs, *self.state_before
                )
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
        """Measure the forward pass of the first minibatch, and compute its ratios, where needed.

        The time is measured in profiled epochs. The ratios are computed if the epoch checks them
        and they aren't known to be 1; ``results.first_ratios`` then contains them. A ratio is the
        probability of an action, computed again with the weights that acted, divided by the
        recorded probability. It should be 1.

        Args:
            minibatch: the first minibatch of the epoch.
            rows: agents of the minibatch, (S,) int32, or None: ``Epoch.rows``.
        """
        if self.profiled:
            self._measure_forward(minibatch)
        if self.checks_ratios and not self.learner.first_ratios_are_one:
            self.results.first_ratios = self._ratios_as_acted(minibatch, rows)

    def lap(self, phase: str, result: Any) -> None:
        """Evaluate a result and charge the time to its phase, if the epoch is profiled.

        A retried epoch only evaluates the result. Other epochs do nothing.
        """
        if not (self.profiled or self.retrying):
            return
        began = time.perf_counter()
        mx.eval(result)
        if not self.profiled:
            return
        timer = self.learner.timer
        timer.lap(phase, LEARNING)
        if phase == BACKWARD_PHASE and self._forward_seconds:
            rest = max(0.0, time.perf_counter() - began - self._forward_seconds)
            timer.split(
                BACKWARD_PHASE, {"train_forward": self._forward_seconds, BACKWARD_PHASE: rest}
            )
            self._forward_seconds = 0.0

    def _measure_forward(self, minibatch: Minibatch) -> None:
        """Measure the time of a minibatch's forward pass alone, from initial recurrent states."""
        began = time.perf_counter()
        learner = self.learner
        minibatch = minibatch._replace(targets=None, state=None)
        for _ in range(1 if learner.measured_forward else 2):  # the first call compiles
            start = time.perf_counter()
            with building:
                logprobs = learner.logprobs(self.state_before.weights, minibatch)
            mx.eval(logprobs)
            self._forward_seconds = time.perf_counter() - start
        learner.measured_forward = True
        self.extra_seconds += time.perf_counter() - began
        learner.timer.start()

    def _ratios_as_acted(self, minibatch: Minibatch, rows: mx.array | None) -> mx.array:
        """Return a minibatch's ratios (T, S), with the weights and recurrent states that acted."""
        state = minibatch.state
        reader = self.learner.reader
        if state is None and rows is not None:
            states = reader.first_states(self.rollout)
            with building:
                state = states and tree_map(
                    lambda a: take_rows(a[None], rows, 1).squeeze(0), states
                )
        acted = reader.acted_logprobs(self.rollout, state, minibatch)
        with building:
            return mx.exp(acted - minibatch.targets.old_logprob.reshape(acted.shape))

    def _retry(self, error: RuntimeError) -> None:
        """Repeat the update phase by phase, after macOS stopped a GPU command.

        Raises:
            RuntimeError: ``error``, if it has another cause.
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
    """Train on an epoch's minibatches, one by one, and return the state after them.

    The first minibatch whose KL exceeds ``algorithm.largest_kl`` ends the epoch, without a step.
    With a finite limit, this waits for each minibatch to know its KL.

    Args:
        algorithm: generates the minibatches.
        epoch: inputs of the minibatches.
        state: weights, optimizer state and loss scaling before the epoch.
        results: the results of each minibatch are added here.
        observe: called with the first minibatch and ``Epoch.rows``, before its gradients.
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
            epoch.lap(BACKWARD_PHASE, (grads, metrics, ratios, values, advantages))
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
            *new_state, ok = functions.optimise(*state, grads, metrics, scheduled.lr)
        if epoch.lap is not None:
            epoch.lap("train_optimizer", (new_state, ok))
        state = TrainState(*new_state)
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
    *state_before: Any,
) -> Any:
    """Train for an entire epoch. ``Learner.graph`` is this function, compiled.

    Args:
        algorithm: generates the minibatches.
        functions: functions of an update, not compiled.
        config: local configuration of this process.
        recompute: ``Reader.recompute`` with functions that aren't compiled.
        checks_ratios: True to report how far the first minibatch's ratios are from 1.
        fields: the arrays of a rollout by name.
        states: recurrent states of the agents at the start of the rollout, or None.
        acted: the weights that acted if ``recompute`` is needed, else None.
        draws: random numbers from ``Algorithm.draws``.
        scheduled: the fields of ``Scheduled.as_arrays()``.
        state_before: the fields of ``TrainState``.

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
    after = run_minibatches(algorithm, epoch, TrainState(*state_before), results)
    if counts_at_once(config):
        flags = [ok for ok, *_ in results.minibatches]
        scaler = precision.count_minibatches(after.scaler, flags, config.train.precision)
        after = after._replace(scaler=scaler)
    packed = results.pack(after, results.first_ratios if checks_ratios else None)
    return tuple(after), packed, [list(arrays) for arrays in results.minibatches]


def trainable_steps(final_observations: np.ndarray | None, steps: int, agents: int) -> np.ndarray:
    """Return the mask of steps to train on, (T, N) bool.

    Excludes final observations, whose actions were ignored, and the last step, whose reward is
    unknown. If no step remains, all steps are included so that minibatches aren't empty; their
    advantages are 0.

    Args:
        final_observations: (T + 1, N), non-zero for final observations of episodes, or None.
        steps: Number of steps T.
        agents: Number of agents N.
    """
    mask = (
        np.ones((steps, agents), bool)
        if final_observations is None
        else final_observations[:steps] == 0
    )
    mask[-1] = False
    return mask if mask.any() else ~mask
