"""PufferLib 4.0's algorithm: segments are sampled by the magnitude of their advantages.

For each minibatch:

    targets:    write the previous minibatch's ratios and values; compute advantages of all agents
    draw:       priorities -> S agents and their targets
    gather:     observations, actions, masks and terminals of these agents
    gradients:  forward pass over (T, S) from the initial states, loss, gradients
    optimise:   the optimizer's step
"""

from collections.abc import Iterator
from functools import partial

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.components import Facts
from puffer_mlx.ops import take_targets
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import advantage, priority
from puffer_mlx.ppo.advantage import after_minibatch
from puffer_mlx.ppo.algorithms import Algorithm, Epoch, Step, choose_loss, discounts
from puffer_mlx.ppo.custom import find_advantages
from puffer_mlx.ppo.loss import Coefficients, Targets
from puffer_mlx.ppo.minibatch import LossSpec
from puffer_mlx.ppo.sections import Fields, Minibatch
from puffer_mlx.system.devices import building

FACTS = Facts(
    about="PufferLib 4.0's, segments sampled by priority, advantages normalized",
    title="PufferLib 4.0's",
    release="4.0",
    carries_state=False,
)


def make(policy: Policy, config: Config, agents: int, one_cpu: bool) -> Algorithm:
    """See ``algorithms.make``."""
    train = config.train
    shape = config.minibatches, config.segments
    function = find_advantages(config)
    numbers = discounts(train)
    if function is advantage.advantages:
        numbers = numbers._replace(form=train.advantage)
    targets = partial(after_minibatch, discounts=numbers, vtrace=train.vtrace, function=function)
    loss, metrics = choose_loss(config)
    return Algorithm(
        minibatches=_minibatches,
        loss=loss,
        metrics=metrics,
        scoring=LossSpec(Coefficients.of(train)),
        steps={
            "targets": Step(targets, "train_advantage", view=_compared),
            "draw": Step(partial(_draw, train.prio_alpha), "train_priorities"),
        },
        draws=lambda key: 1 - mx.random.uniform(shape=shape, key=key),  # (K, S) in (0, 1]
    )


def _compared(_: tuple, targets: tuple) -> tuple:
    """Return targets with sums over time, which some implementations return, in the last place."""
    *others, totals = targets
    return *others, mx.sum(mx.abs(totals), axis=0)


def _draw(
    alpha: float,
    fields: Fields,
    values: mx.array,
    adv: mx.array,
    totals: mx.array,
    uniforms: mx.array,
    beta: mx.array,
) -> tuple[mx.array, Targets]:
    """Sample the agents of a minibatch by priority, with replacement.

    Args:
        alpha: exponent of the priorities, ``train.prio_alpha``.
        fields: the arrays of a rollout by name.
        values: values (T, N).
        adv: advantages (T, N).
        totals: an array whose sums of magnitudes over time are those of the advantages.
        uniforms: uniform random numbers in (0, 1], (S,).
        beta: exponent of the importance weights, a scalar array.

    Returns:
        Indices of the agents (S,) int32, and targets.
    """
    rows, weights = priority.choose(totals, uniforms, beta, alpha)
    finals = fields.get("finals")
    return rows, Targets(*take_targets(fields["logprobs"], values, adv, finals, rows, weights))


def _minibatches(epoch: Epoch) -> Iterator[Minibatch]:
    """Yield minibatches of agents, sampled anew after each update of values and ratios."""
    fields = epoch.fields
    values = fields["values"]
    with building:
        ratios = mx.ones_like(values)
        draws = [epoch.draws[k : k + 1].reshape(-1) for k in range(len(epoch.draws))]
    changes = None  # agents, values, ratios and flag of the previous minibatch
    for uniforms in draws:
        values, ratios, adv, totals = epoch.run("targets", fields, values, ratios, changes)
        arguments = fields, values, adv, totals, uniforms, epoch.scheduled.beta
        rows, targets = epoch.run("draw", *arguments)
        epoch.rows = rows
        yield epoch.run("gather", fields, rows)._replace(targets=targets)
        changes = rows, *epoch.trained
