"""Training on one rollout: minibatches of an algorithm, each made of named steps.

A lock, timing and comparing are wrapped around the steps, by ``observers.py``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import algorithms, precision
from puffer_mlx.ppo.algorithms import Algorithm, Epoch, Scheduled
from puffer_mlx.ppo.sections import Fields, Inputs, MeanNoise
from puffer_mlx.ppo.update import (
    Executables,
    TooLarge,
    TrainState,
    by_name,
    compile_steps,
    counts_at_once,
    steps_in_one,
)
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.health import Asked, Health, Minibatch, Submitted
from puffer_mlx.training.observers import FirstRatios, Observer, locked, watched
from puffer_mlx.training.placement import Placement
from puffer_mlx.training.reader import Learned, Reader

RPO = 0x52504F  # tells the noise's key from the epoch's
PHASES = {  # what the time of the steps that all algorithms share is charged to
    "copy": "train_copy",
    "recompute": "train_recompute",
    "gather": "train_gather",
    "gradients": "train_backward",
    "optimise": "train_optimizer",
}


class Draws(NamedTuple):
    """What is random about training on a rollout.

    Args:
        minibatches: what they are made of: of ``Algorithm.draws``.
        noise: on the means of continuous actions; None: there is none.
    """

    minibatches: mx.array
    noise: MeanNoise | None = None


class EpochInputs(NamedTuple):
    """What an epoch is computed from.

    Args:
        rollout: what to train on; nobody may write to it before training returns.
        before: weights, and what else training changes, as the epoch begins.
        draws: what ``Learner.draws`` returned.
        scheduled: the epoch's numbers.
    """

    rollout: Rollout
    before: TrainState
    draws: Draws
    scheduled: Scheduled


class Built(NamedTuple):
    """An epoch that is built and not submitted yet.

    Args:
        before: what it begins with.
        now: the state after it.
        asked: what there will be to know of it.
        compared: whether that has the first minibatch's ratios.
    """

    before: TrainState
    now: TrainState
    asked: Asked
    compared: bool


class Learner:
    """Trains on rollouts.

    Args:
        config: a valid configuration.
        run: the policy's compiled functions.
        placement: where it acts and is trained.
        policy: what is trained.
        ranks: the processes that train it together.
        learned: whose rows are trained on; None: all agents'.

    Attributes:
        algorithm: by which it trains.
        steps: what ``train`` calls, a NamedTuple of functions: ``copy`` and ``recompute`` for each
            rollout, which return their argument where acting and training compute in one place
            (``reader.py``) and all agents are trained on; ``gather``, ``gradients``, ``optimise``
            and the algorithm's own. They may be replaced between two epochs: one by ``_replace``,
            all by ``watched``.
        compiled_steps: as they were at first.
        whole_epoch: all minibatches of an epoch as one compiled function, while nobody replaces
            ``steps``; None where an epoch isn't submitted as one.
        phases: of a record, what each step's time is charged to.
        reader: fetches rollouts that were acted on another device.
        health: judges an epoch's losses and weights.
    """

    def __init__(
        self,
        config: Config,
        run: Executables,
        placement: Placement,
        policy: Policy,
        ranks: SingleProcess = SINGLE_PROCESS,
        learned: Learned | None = None,
    ) -> None:
        own = ranks.own(config)
        agents = learned.agents if learned else own.vec.total_agents
        one_cpu = placement.learner == mx.cpu and ranks.size == 1
        self.algorithm = algorithms.make(policy, own, agents, one_cpu)
        run = watched(run, locked)
        self.reader = Reader(run, placement, own, learned)
        self._learned, self._minibatches = learned, own.minibatches
        self._alpha = config.train.rpo_alpha
        self.health = Health(config, self.algorithm.metrics)
        self._submitted: Submitted | None = None  # of the last epoch, if one after the other
        summed = partial(ranks.summed, normalised=self.algorithm.normalises)
        compiled = watched(compile_steps(policy, own, self.algorithm, summed), locked)
        shared = {"copy": self.reader.copy, "recompute": self.reader.recompute}
        shared["gather"] = run.gather
        self.steps = self.compiled_steps = ranks.divided(by_name(shared | compiled._asdict()))
        alone = ranks.size == 1 and self.algorithm.largest_kl == math.inf
        self._in_one = steps_in_one(policy, own, self.algorithm) if alone else None
        self.whole_epoch = mx.compile(partial(self._trace, self._in_one)) if alone else None
        self._sizes: dict[bool, dict[str, int]] = {}  # of what a whole epoch packs, as traced
        own_phases = {name: step.phase for name, step in self.algorithm.steps.items()}
        self.phases = PHASES | own_phases

    def train(
        self,
        inputs: EpochInputs,
        observers: Sequence[Observer] = (),
        go_on: Callable[[TrainState], None] = lambda now: None,
        built: Built | None = None,
    ) -> tuple[TrainState, dict[str, float]]:
        """An epoch: K minibatches of a rollout.

        Args:
            inputs: of the epoch.
            observers: of this epoch's steps, the outermost last.
            go_on: called with the state after it when all of it is submitted, before it is
                computed.
            built: what ``build`` made of the inputs, if it is of use.

        Returns:
            The state after it, evaluated; losses, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row weren't finite, or the weights aren't.
        """
        rollout, before, draws, scheduled = inputs
        steps = watched(self.steps, *observers)
        self._submitted, submitted = None, Submitted()
        whole, compared = self._is_whole(inputs, observers), bool(observers)
        if built and not (whole and built.before is before and built.compared == compared):
            built = None
        if built is None:
            fields = steps.recompute(steps.copy(rollout.buffer.fields), rollout)
            if whole:
                built = self._whole(inputs, fields, compared)
        if built is not None:
            now, asked = built.now, built.asked
            mx.async_eval(*now.arrays(), asked.packed)
            go_on(now)
            return now, self.health.judge(rollout, now, asked)
        epoch = Epoch(
            *(steps, fields, draws.minibatches, scheduled),
            states=partial(self.reader.first_states, rollout),
            learned=lambda: learned_from(self._finals(rollout), *fields["actions"].shape[:2]),
            values=fields["values"],
            noise=draws.noise,
        )
        if self.algorithm.at_once is None:
            self._submitted = submitted
            now = train_on(self.algorithm, epoch, before, submitted, self._minibatches)
        else:
            *after, adv, metrics, ok = self.algorithm.at_once(epoch, *before.arrays())
            now = TrainState(*after)
            submitted.submit(now, adv, metrics, ok)
        with building:
            asked = self.health.ask(now, submitted)
        mx.async_eval(asked.packed)
        go_on(now)
        return now, self.health.judge(rollout, now, asked)

    def build(self, inputs: EpochInputs, compared: bool) -> Built | None:
        """Build an epoch that is one function, of a rollout that nothing has to be done to first.

        Nothing of it is submitted, and neither need be computed: not the rollout, nor the state.

        Args:
            inputs: of the epoch.
            compared: whether the first minibatch's ratios are observed.
        """
        if not (self.reader.as_it_is and self._is_whole(inputs, ())):
            return None
        return self._whole(inputs, inputs.rollout.buffer.fields, compared)

    def _traced(self, inputs: EpochInputs, fields: Fields) -> tuple:
        """What ``whole_epoch`` computes from, as trees of arrays."""
        rollout, before, draws, scheduled = inputs
        numbers = scheduled.lr, scheduled.ent_coef, scheduled.beta
        return (
            fields,
            self.reader.first_states(rollout),
            draws.minibatches,
            numbers,
            *before.arrays(),
        )

    def _is_whole(self, inputs: EpochInputs, observers: Sequence[Observer]) -> bool:
        """Whether an epoch is submitted as one, if there is room for what its minibatches store.

        There is nothing to observe then but the first ratios, which it has itself.
        """
        return (
            self.whole_epoch is not None
            and backend() == "cuda"
            and self.steps is self.compiled_steps
            and self.algorithm.at_once is None
            and inputs.draws.noise is None
            and inputs.rollout.buffer.last_rows is None
            and all(isinstance(one, FirstRatios) and one.comparable for one in observers)
        )

    def _whole(self, inputs: EpochInputs, fields: Fields, compared: bool) -> Built | None:
        """An epoch as one compiled function; None if its minibatches store too much.

        What the host does for a minibatch would else take longer than the GPU takes to compute it.
        """
        arguments = self._traced(inputs, fields)
        assert self.whole_epoch is not None
        try:
            with building:
                trees, packed, each = self.whole_epoch(compared, *arguments)
        except TooLarge:
            self.whole_epoch = None
            return None
        minibatches = [Minibatch(*arrays) for arrays in each]
        asked = Asked(packed, self._sizes[compared], minibatches)
        return Built(inputs.before, TrainState(*trees), asked, compared)

    def _trace(
        self,
        steps: Any,
        compared: bool,
        fields: Fields,
        states: Any,
        *others: Any,
    ) -> Any:
        """Compute an entire epoch; ``whole_epoch`` is this function, compiled."""
        draws, numbers, *before = others
        ratios: list[mx.array] = []

        def gradients(*inputs: Any) -> Any:
            result = steps.gradients(*inputs)
            ratios.append(result[2])
            return result

        submitted, scheduled = Submitted(traced=True), Scheduled(*numbers)
        learned = partial(learned_from, None, *fields["actions"].shape[:2])
        epoch = Epoch(
            *(steps._replace(gradients=gradients), fields, draws, scheduled),
            *(lambda: states, learned),
            values=fields["values"],
        )
        now = train_on(self.algorithm, epoch, TrainState(*before), submitted, self._minibatches)
        if counts_at_once(config := self.health.config):
            scaler = precision.count_all(now.scaler, submitted.counted, config.train.precision)
            now = replace(now, scaler=scaler)
        asked = self.health.ask(now, submitted, ratios[0] if compared else None)
        self._sizes[compared] = asked.others
        return now.arrays(), asked.packed, [[*each] for each in asked.minibatches]

    @property
    def part(self) -> float | None:
        """The submitted share of the epoch's minibatches, for any thread; None: all at once."""
        now = self._submitted  # another thread may change it
        return None if now is None else now.count / self._minibatches

    def draws(self, key: mx.array) -> Draws:
        """An epoch's random numbers."""
        drawn = self.algorithm.draws(key)
        if not self._alpha:
            return Draws(drawn)
        with building:  # a key beside those that the algorithm may have split this one into
            return Draws(drawn, MeanNoise(self._alpha, key ^ mx.array(RPO, mx.uint32)))

    def _finals(self, rollout: Rollout) -> np.ndarray | None:
        """Which rows hold an episode's last observation, of the agents that are trained on."""
        finals = rollout.buffer.last_rows
        return finals if self._learned is None else self._learned.finals(finals)


def learned_from(finals: np.ndarray | None, steps: int, agents: int) -> np.ndarray:
    """Which steps of a rollout are learned from, (T, N) bool: see ``ppo/sections.py``.

    If none is, all are, so that there are minibatches: their advantages are 0 and teach nothing.

    Args:
        finals: the rollout's, (T + 1, N).
        steps: T.
        agents: N.
    """
    learned = np.ones((steps, agents), bool) if finals is None else finals[:steps] == 0
    learned[-1] = False
    return learned if learned.any() else ~learned


def train_on(
    algorithm: Algorithm, epoch: Epoch, before: TrainState, submitted: Submitted, minibatches: int
) -> TrainState:
    """An epoch's minibatches, of which there are K at most, one after the other.

    The first one whose KL is more than ``algorithm.largest_kl`` is the last, and no step is made
    with it. Each is waited for to know that, unless that is infinite.
    """
    now, steps, numbers = before, epoch.steps, epoch.scheduled
    moved = _moving(epoch, minibatches)
    for inputs, compared, state in algorithm.minibatches(epoch):
        inputs = moved(inputs)
        grads, metrics, ratio, value, adv = steps.gradients(
            *(now.weights, *inputs, compared, state), *(numbers.ent_coef, now.scaler["scale"])
        )
        if algorithm.largest_kl < math.inf and _kl(algorithm, metrics) > algorithm.largest_kl:
            with building:
                finite = mx.isfinite(metrics).all()
            submitted.submit(now, adv, metrics, finite)
            break
        *after, ok = steps.optimise(*now.arrays(), grads, metrics, numbers.lr)
        also = algorithm.write_back(epoch, ratio, value, ok)
        now = TrainState(*after)
        submitted.submit(now, adv, metrics, ok, *also)
    return now


def _moving(epoch: Epoch, minibatches: int) -> Callable[[Inputs], Inputs]:
    """What moves each minibatch's actions, in their order, by the epoch's noise if it has any."""
    if (noise := epoch.noise) is None:
        return lambda inputs: inputs
    left: list[mx.array] = []

    def moved(inputs: Inputs) -> Inputs:
        (T, S), heads = inputs.observations.shape[:2], inputs.actions.shape[-1]  # type: ignore
        with building:
            if not left:
                left.extend(noise.draw((minibatches, T, S, heads)))
            z = left.pop(0).reshape(inputs.actions.shape)
            return inputs._replace(actions=inputs.actions - z)

    return moved


def _kl(algorithm: Algorithm, metrics: mx.array) -> float:
    """A minibatch's KL, once it is computed."""
    numbers: Any = metrics.tolist()
    return numbers[algorithm.metrics.index("kl")]
