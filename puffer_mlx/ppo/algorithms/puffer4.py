"""PufferLib 4.0's: segments are drawn by their advantages, which every minibatch changes.

For each minibatch:

    targets:    the new ratios and values of the minibatch before; advantages over all rows
    draw:       priorities -> S rows and what is compared with them
    gather:     the rows' observations, actions, masks and terminals
    gradients:  forward over (T, S) from the initial state, loss, gradients
    optimise:   the optimizer's step
"""

from collections.abc import Iterator
from functools import partial

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.parts import Facts
from puffer_mlx.ops import take_targets
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import advantage, priority
from puffer_mlx.ppo.advantage import after_minibatch
from puffer_mlx.ppo.algorithms import Algorithm, Epoch, Step, discounts, score, scoring
from puffer_mlx.ppo.custom import find_advantages
from puffer_mlx.ppo.loss import Minibatch
from puffer_mlx.ppo.sections import Fields, MinibatchInputs
from puffer_mlx.system.devices import building

FACTS = Facts(
    about="PufferLib 4.0's, segments drawn by priority, advantages normalised",
    title="PufferLib 4.0's trainer",
    release="4.0",
    carries_state=False,
)


def make(policy: Policy, config: Config, agents: int, one_cpu: bool) -> Algorithm:
    """See ``algorithms.make``."""
    train, shape = config.train, (config.minibatches, config.segments)
    function, numbers = find_advantages(config), discounts(train)
    if function is advantage.advantages:
        numbers = numbers._replace(form=train.advantage)
    targets = partial(after_minibatch, discounts=numbers, vtrace=train.vtrace, function=function)
    return Algorithm(
        _minibatches,
        *score(policy, config),
        scoring=scoring(config),
        steps={
            "targets": Step(targets, "train_advantage", view=_compared),
            "draw": Step(partial(_draw, train.prio_alpha), "train_priorities"),
        },
        draws=lambda key: 1 - mx.random.uniform(shape=shape, key=key),  # (K, S) in (0, 1]
        write_back=_write_back,
    )


def _compared(_: tuple, targets: tuple) -> tuple:
    """Return targets with sums over time, which some implementations return, in the last place."""
    *others, totals = targets
    return *others, mx.sum(mx.abs(totals), axis=0)


def _draw(alpha: float, fields: Fields, values, adv, totals, uniforms, beta):
    """The minibatch's rows (S,), with replacement, and their targets."""
    rows, weights = priority.choose(totals, uniforms, beta, alpha)
    finals = fields.get("finals")
    return rows, Minibatch(*take_targets(fields["logprobs"], values, adv, finals, rows, weights))


def _minibatches(epoch: Epoch) -> Iterator[MinibatchInputs]:
    fields, beta = epoch.fields, epoch.scheduled.beta
    with building:
        epoch.ratios, epoch.back = mx.ones_like(epoch.values), None
        draws = [epoch.draws[k : k + 1].reshape(-1) for k in range(len(epoch.draws))]
    for uniforms in draws:  # (S,)
        now = epoch.run("targets", fields, epoch.values, epoch.ratios, epoch.back)
        epoch.values, epoch.ratios, *drawn_by = now
        drawn = epoch.values, *drawn_by, uniforms, beta
        epoch.rows, targets = epoch.run("draw", fields, *drawn)
        yield MinibatchInputs(epoch.gather(fields, epoch.rows), targets, None)


def _write_back(epoch: Epoch, ratio, value, ok) -> tuple[mx.array, ...]:
    """Keep the new values and ratios of the drawn rows for ``targets``."""
    epoch.back = epoch.rows, value, ratio, ok
    return value, ratio
