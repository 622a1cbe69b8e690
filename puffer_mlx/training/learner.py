"""Training on one rollout: K minibatches, each of named steps.

What else goes on at a step (a lock, timing, comparing) is an observer's: ``observers.py``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.config import Config
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
    gather: Step
    gradients: Step
    optimise: Step
    write_back: Step


class Learner:
    """Trains on rollouts.

    Args:
        config: a valid configuration.
        run: the policy's compiled functions.
        placement: where it acts and is trained.

    Attributes:
        steps: what ``train`` calls; may be replaced between two epochs, one step by ``_replace`` or
            all of them by ``watched``.
        reader: of rollouts that were acted elsewhere.
        health: judges what came out.
    """

    def __init__(self, config: Config, run: Executables, placement: Placement) -> None:
        run = watched(run, locked)
        self.reader = Reader(run, placement, config)
        self.health = Health(config)
        self._config = config
        others = (getattr(run, name) for name in Steps._fields[2:])
        self.steps = Steps(self.reader.copy, self.reader.recompute, *others)

    def train(
        self,
        rollout: Rollout,
        before: TrainState,
        uniforms: mx.array | None,
        scheduled: Scheduled,
        observers: Sequence[Observer] = (),
    ) -> tuple[TrainState, dict[str, float]]:
        """K minibatches.

        Args:
            rollout: what to train on; not rewritten before this returns.
            before: what to begin with.
            uniforms: of ``drawn_by``.
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
        if uniforms is None:
            sections = steps.split(fields, self.reader.first_states(rollout))
            now = self._in_order(steps, sections, before, scheduled, submitted)
        else:
            now = _by_priority(steps, fields, before, uniforms, scheduled, submitted)
        return now, self.health.judge(rollout, now, submitted)

    def _in_order(
        self,
        steps: Steps,
        sections: list[Section],
        before: TrainState,
        scheduled: Scheduled,
        submitted: Submitted,
    ) -> TrainState:
        """PufferLib 5.0's minibatches: the agents in their order, S by S, and from the first again.

        If K S isn't a multiple of N the first ones are trained on once more, always the same ones.
        Takes from the list what it doesn't need any longer.
        """
        now, count, K = before, len(sections), self._config.minibatches
        for k in range(K):
            inputs, segments, state = section = sections.pop(0)
            if k + count < K:  # it comes again; else its memory serves the next ones
                sections.append(section)
            grads, metrics, _, adv = steps.gradients(
                *(now.weights, *inputs, segments, state),
                *(scheduled.ent_coef, now.scaler["scale"]),
            )
            *after, ok = steps.optimise(*now.arrays(), grads, metrics, scheduled.lr)
            now = TrainState(*after)
            submitted.submit(now, adv, metrics, ok)
        return now


def drawn_by(config: Config, key: mx.array) -> mx.array | None:
    """Numbers by which an epoch's rows are drawn, (K, S) in (0, 1]; None: they have an order."""
    if config.train.algorithm == "puffer5":
        return None
    return 1 - mx.random.uniform(shape=(config.minibatches, config.segments), key=key)


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
