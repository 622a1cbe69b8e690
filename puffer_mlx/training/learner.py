"""Training on one rollout: K minibatches, each of named steps.

What else goes on at a step (a lock, timing, comparing) is an observer's: ``observers.py``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import small_networks
from puffer_mlx.ppo.loss import METRICS, largest_kl
from puffer_mlx.ppo.shuffle import Pass
from puffer_mlx.ppo.update import Executables, Fields, Section
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.health import Health, Submitted
from puffer_mlx.training.observers import Observer, locked, watched
from puffer_mlx.training.placement import Placement
from puffer_mlx.training.reader import Reader
from puffer_mlx.training.train_state import Scheduled, TrainState

Step = Callable[..., Any]


class Steps(NamedTuple):
    """What the learner calls: two steps for a rollout, then an algorithm's own.

    The first two return their argument where acting and training compute in one place
    (``reader.py``); the others are described in ``ppo/update.py``.
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

    Attributes:
        steps: what ``train`` calls; may be replaced between two epochs, one step by ``_replace`` or
            all of them by ``watched``.
        reader: of rollouts that were acted elsewhere.
        health: judges what came out.
    """

    def __init__(
        self, config: Config, run: Executables, placement: Placement, policy: Policy
    ) -> None:
        run = watched(run, locked)
        self.reader = Reader(run, placement, config)
        self.health = Health(config)
        self._config = config
        if config.train.algorithm == "ppo":
            self._pass = Pass.of(config, policy.has_memory)
        self._largest_kl = largest_kl(config.train)
        self._at_once = placement.learner == mx.cpu and small_networks.fits(policy, config.train)
        others = (getattr(run, name) for name in Steps._fields[2:])
        self.steps = Steps(self.reader.copy, self.reader.recompute, *others)

    def train(
        self,
        rollout: Rollout,
        before: TrainState,
        draws: mx.array,
        scheduled: Scheduled,
        observers: Sequence[Observer] = (),
    ) -> tuple[TrainState, dict[str, float]]:
        """K minibatches.

        Args:
            rollout: what to train on; not rewritten before this returns.
            before: what to begin with.
            draws: of ``draws``.
            scheduled: the epoch's numbers.
            observers: of this epoch's steps, the outermost last.

        Returns:
            What it became, evaluated, and the losses, means over the minibatches that counted.

        Raises:
            UserError: too many minibatches in a row weren't finite, or weights aren't any more.
        """
        steps: Steps = watched(self.steps, *observers)
        fields = steps.recompute(steps.copy(rollout.buffer.fields), rollout)
        submitted = Submitted()
        if self._config.train.algorithm == "puffer4":
            now = _by_priority(steps, fields, before, draws, scheduled, submitted)
        elif self._at_once:
            now = self._all_at_once(steps, fields, rollout, before, draws, scheduled, submitted)
        else:
            sections, most = self._sections(steps, fields, rollout, draws), self._largest_kl
            now = _one_by_one(steps, sections, before, scheduled, submitted, most)
        return now, self.health.judge(rollout, now, submitted)

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
        """PPO's minibatches by one step for all of them."""
        learned = _learned_from(rollout.buffer.rows.finals, *fields["actions"].shape[:2])
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

    def draws(self, key: mx.array) -> mx.array:
        """What an epoch's minibatches are drawn by.

        puffer4: numbers (K, S) in (0, 1]; ppo: a key for each pass; puffer5 draws nothing.
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
        """What puffer5's and ppo's minibatches are made of, one after the other."""
        states, K = self.reader.first_states(rollout), self._config.minibatches
        if self._config.train.algorithm == "puffer5":
            return _in_order(steps.split(fields, states), K)
        return islice(self._shuffled(steps, fields, states, rollout.buffer.rows.finals, draws), K)

    def _shuffled(
        self, steps: Steps, fields: Fields, states: Any, finals: np.ndarray | None, keys: mx.array
    ) -> Iterator[Section]:
        """PPO's minibatches: all passes, each in an order of its own."""
        steps_of = _learned_from(finals, *fields["actions"].shape[:2])
        with building:
            learned = mx.array(steps_of, mx.float32)
        adv = steps.targets(fields, fields["values"], None)
        for order in self._orders(steps_of, keys):
            yield from steps.shuffle(fields, adv, states, learned, order)

    def _orders(self, learned: np.ndarray, keys: mx.array) -> Iterator[mx.array]:
        """The order of each pass: of all agents, or of the samples that are learned from."""
        by_segment = self._pass.by_segment
        numbers = np.arange(learned.shape[1]) if by_segment else np.flatnonzero(learned)
        with building:
            what = mx.array(numbers, mx.int32)
        for key in keys:
            with building:
                order = self._pass.order(key, what)
            yield order


def _learned_from(finals: np.ndarray | None, steps: int, agents: int) -> np.ndarray:
    """Which steps of a rollout are learned from, (T, N) bool; all if none is: they teach nothing.

    Args:
        finals: (T + 1, N), as of the rollout.
        steps: T.
        agents: N.
    """
    learned = np.ones((steps, agents), bool) if finals is None else finals[:steps] == 0
    learned[-1] = False
    return learned if learned.any() else ~learned


def _in_order(sections: list[Section], minibatches: int) -> Iterator[Section]:
    """PufferLib 5.0's minibatches: the agents in their order, S by S, and from the first again.

    If K S isn't a multiple of N the first ones are trained on once more, always the same ones.
    Takes from the list what it doesn't need any longer.
    """
    count = len(sections)
    for k in range(minibatches):
        section = sections.pop(0)
        if k + count < minibatches:  # it comes again; else its memory serves the next ones
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
    """Minibatches that are made of nothing that another one changes.

    The first one whose KL is more than ``most`` is the last, and no step is made with it. To know
    that, each is waited for.
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
    """PufferLib 4.0's minibatches: agents drawn by their advantages, which change meanwhile."""
    now, values = before, fields["values"]
    with building:
        ratios, draws = mx.ones_like(values), mx.split(uniforms, len(uniforms))
    for uniform in draws:  # (1, S)
        adv = steps.targets(fields, values, ratios)
        rows, batch = steps.draw(fields, adv, values, uniform.reshape(-1), scheduled.beta)
        minibatch = steps.gather(fields, rows)
        grads, metrics, new_ratios, new_values = steps.gradients(
            now.weights, *minibatch, batch, scheduled.ent_coef, now.scaler["scale"]
        )
        *after, ok = steps.optimise(*now.arrays(), grads, metrics, scheduled.lr)
        values, ratios = steps.write_back(values, ratios, rows, new_values, new_ratios, ok)
        now = TrainState(*after)
        submitted.submit(now, adv, metrics, ok, values, ratios)
    return now
