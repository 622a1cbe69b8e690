"""Training on one rollout: K minibatches, each made of named steps.

A lock, timing and comparing are wrapped around the steps, by ``observers.py``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.machines.alone import ALONE, Alone
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import small_networks
from puffer_mlx.ppo.loss import METRICS, largest_kl
from puffer_mlx.ppo.sections import Section
from puffer_mlx.ppo.shuffle import Fields, Pass
from puffer_mlx.ppo.update import Executables
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.health import Health, Submitted
from puffer_mlx.training.learned_rows import Learned
from puffer_mlx.training.observers import Observer, locked, watched
from puffer_mlx.training.placement import Placement
from puffer_mlx.training.reader import Reader
from puffer_mlx.training.train_state import Scheduled, TrainState

Step = Callable[..., Any]


class Steps(NamedTuple):
    """What the learner calls: two steps for each rollout, and those that algorithms choose from.

    ``copy`` and ``recompute`` return their argument where acting and training compute in one place
    (``reader.py``) and all agents are trained on; the others are described in ``ppo/update.py``.
    """

    copy: Step
    recompute: Step
    targets: Step
    draw: Step
    split: Step
    shuffle: Step
    gather: Step
    gradients: Step
    optimise: Step
    write_back: Step
    epoch: Step


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
        steps: what ``train`` calls. They may be replaced between two epochs: one by ``_replace``,
            all by ``watched``.
        reader: fetches rollouts that were acted on another device.
        health: judges an epoch's losses and weights.
    """

    def __init__(
        self,
        config: Config,
        run: Executables,
        placement: Placement,
        policy: Policy,
        ranks: Alone = ALONE,
        learned: Learned | None = None,
    ) -> None:
        run = watched(run, locked)
        self.reader = Reader(run, placement, ranks.own(config), learned)
        self._learned = learned
        self.health = Health(config)
        self._config = config = ranks.drawn(config)
        self._ranks = ranks
        if config.train.algorithm == "ppo":
            agents = learned.agents if learned else config.vec.total_agents
            self._pass = Pass.of(config, policy.has_memory, agents)
        self._largest_kl = largest_kl(config.train)
        in_one = placement.learner == mx.cpu and small_networks.fits(policy, config.train)
        self._at_once = in_one and ranks.size == 1
        others = (getattr(run, name) for name in Steps._fields[2:])
        self._submitted = Submitted()  # of the last epoch
        self.steps = ranks.divided(Steps(self.reader.copy, self.reader.recompute, *others))

    def train(
        self,
        rollout: Rollout,
        before: TrainState,
        draws: mx.array,
        scheduled: Scheduled,
        observers: Sequence[Observer] = (),
    ) -> tuple[TrainState, dict[str, float]]:
        """An epoch: K minibatches of a rollout.

        Args:
            rollout: what to train on; nobody may write to it before this returns.
            before: weights, and what else training changes, as the epoch begins.
            draws: what the method ``draws`` returned.
            scheduled: the epoch's numbers.
            observers: of this epoch's steps, the outermost last.

        Returns:
            The state after it, evaluated; losses, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row weren't finite, or the weights aren't.
        """
        steps: Steps = watched(self.steps, *observers)
        fields = steps.recompute(steps.copy(rollout.buffer.fields), rollout)
        submitted = self._submitted = Submitted()
        if self._config.train.algorithm == "puffer4":
            now = _by_priority(steps, fields, before, draws, scheduled, submitted)
        elif self._at_once:
            now = self._all_at_once(steps, fields, rollout, before, draws, scheduled, submitted)
        else:
            sections, most = self._sections(steps, fields, rollout, draws), self._largest_kl
            now = _one_by_one(steps, sections, before, scheduled, submitted, most)
        return now, self.health.judge(rollout, now, submitted)

    @property
    def part(self) -> float | None:
        """Which part of the epoch's minibatches is submitted; None: all at once. Of any thread."""
        return None if self._at_once else self._submitted.count / self._config.minibatches

    def _all_at_once(
        self,
        steps: Steps,
        fields: Fields,
        rollout: Rollout,
        before: TrainState,
        keys: mx.array,
        scheduled: Scheduled,
        submitted: Submitted,
    ) -> TrainState:
        """All of PPO's minibatches in one operation: ``ppo/small_networks``."""
        learned = _learned_from(self._finals(rollout), *fields["actions"].shape[:2])
        adv = steps.targets(fields, fields["values"], None)
        orders = [*self._orders(learned, keys)]
        with building:
            order = mx.concatenate(orders)[: self._config.minibatches]
        *after, metrics, ok = steps.epoch(
            *(*before.arrays(), fields, adv, order, scheduled.lr, scheduled.ent_coef)
        )
        now = TrainState(*after)
        submitted.submit(now, adv, metrics, ok)
        return now

    def _finals(self, rollout: Rollout) -> np.ndarray | None:
        """Which rows hold an episode's last observation, of the agents that are trained on."""
        finals = rollout.buffer.last_rows
        return finals if self._learned is None else self._learned.finals(finals)

    def draws(self, key: mx.array) -> mx.array:
        """The random numbers that decide what an epoch's minibatches are made of.

        puffer4: uniform ones (K, S) in (0, 1]. ppo: a key for each pass. puffer5, which takes the
        agents in their order, needs none and gets ``key``.
        """
        config = self._config
        if config.train.algorithm == "ppo":
            return mx.random.split(key, self._pass.count)
        if config.train.algorithm == "puffer5":
            return key
        return 1 - mx.random.uniform(shape=(config.minibatches, config.segments), key=key)

    def _sections(
        self, steps: Steps, fields: Fields, rollout: Rollout, draws: mx.array
    ) -> Iterator[Section]:
        """The minibatches of puffer5 or ppo, one after the other."""
        states, K = self.reader.first_states(rollout), self._config.minibatches
        if self._config.train.algorithm == "puffer5":
            return _in_order(steps.split(fields, states), K)
        finals = self._ranks.finals(self._finals(rollout), fields)
        return islice(self._shuffled(steps, fields, states, finals, draws), K)

    def _shuffled(
        self, steps: Steps, fields: Fields, states: Any, finals: np.ndarray | None, keys: mx.array
    ) -> Iterator[Section]:
        """PPO's minibatches of all passes."""
        learned = _learned_from(finals, *fields["actions"].shape[:2])
        with building:
            weights = mx.array(learned, mx.float32)
        adv = steps.targets(fields, fields["values"], None)
        for order in self._orders(learned, keys):
            yield from steps.shuffle(fields, adv, states, weights, order)

    def _orders(self, learned: np.ndarray, keys: mx.array) -> Iterator[mx.array]:
        """Each pass's order: of all agents, or of the samples that are learned from."""
        by_segment = self._pass.by_segment
        found = np.arange(learned.shape[1]) if by_segment else np.flatnonzero(learned)
        with building:
            numbers = mx.array(found, mx.int32)
        for key in keys:
            with building:
                order = self._pass.order(key, numbers)
            yield order


def _learned_from(finals: np.ndarray | None, steps: int, agents: int) -> np.ndarray:
    """Which steps of a rollout are learned from, (T, N) bool: see ``ppo/shuffle.py``.

    If none is, all are, so that there are minibatches: their advantages are 0 and teach nothing.

    Args:
        finals: the rollout's, (T + 1, N).
        steps: T.
        agents: N.
    """
    learned = np.ones((steps, agents), bool) if finals is None else finals[:steps] == 0
    learned[-1] = False
    return learned if learned.any() else ~learned


def _in_order(sections: list[Section], minibatches: int) -> Iterator[Section]:
    """PufferLib 5.0's minibatches: sections of S agents in their order, and from the first again.

    If K isn't a multiple of their number, the first ones are trained on once more than the others.
    A section leaves the list when it comes for the last time.
    """
    count = len(sections)
    for k in range(minibatches):
        section = sections.pop(0)
        if k + count < minibatches:  # it comes again; else its memory is free for the next ones
            sections.append(section)
        yield section


def _one_by_one(
    steps: Steps,
    sections: Iterable[Section],
    before: TrainState,
    scheduled: Scheduled,
    submitted: Submitted,
    most: float,
) -> TrainState:
    """The minibatches of puffer5 or ppo, which depend on each other by the weights alone.

    The first one whose KL is more than ``most`` is the last, and no step is made with it. Each is
    waited for to know that, unless ``most`` is infinite.
    """
    now = before
    for inputs, compared, state in sections:
        grads, metrics, _, adv = steps.gradients(
            *(now.weights, *inputs, compared, state),
            *(scheduled.ent_coef, now.scaler["scale"]),
        )
        if most < math.inf and _kl(metrics) > most:
            with building:
                finite = mx.isfinite(metrics).all()
            submitted.submit(now, adv, metrics, finite)
            break
        *after, ok = steps.optimise(*now.arrays(), grads, metrics, scheduled.lr)
        now = TrainState(*after)
        submitted.submit(now, adv, metrics, ok)
    return now


def _kl(metrics: mx.array) -> float:
    """A minibatch's KL, once it is computed."""
    numbers: Any = metrics.tolist()
    return numbers[METRICS.index("kl")]


def _by_priority(
    steps: Steps,
    fields: Fields,
    before: TrainState,
    uniforms: mx.array,
    scheduled: Scheduled,
    submitted: Submitted,
) -> TrainState:
    """PufferLib 4.0's minibatches: agents drawn by their advantages, which each one changes."""
    now, values = before, fields["values"]
    with building:
        ratios, draws = mx.ones_like(values), mx.split(uniforms, len(uniforms))
    for uniform in draws:  # (1, S)
        adv = steps.targets(fields, values, ratios)
        rows, batch = steps.draw(fields, adv, values, uniform.reshape(-1), scheduled.beta)
        minibatch = steps.gather(fields, rows)
        grads, metrics, new_ratios, new_values = steps.gradients(
            *(now.weights, *minibatch, batch, None),
            *(scheduled.ent_coef, now.scaler["scale"]),
        )
        *after, ok = steps.optimise(*now.arrays(), grads, metrics, scheduled.lr)
        values, ratios = steps.write_back(values, ratios, rows, new_values, new_ratios, ok)
        now = TrainState(*after)
        submitted.submit(now, adv, metrics, ok, values, ratios)
    return now
