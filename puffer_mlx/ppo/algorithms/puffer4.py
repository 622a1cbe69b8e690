"""PufferLib 4.0's algorithm: segments are sampled by the magnitude of their advantages.

For each minibatch:

    targets:    write the previous minibatch's ratios and values; compute advantages of all agents
    draw:       sample S agents by priority, and gather their targets
    gather:     gather the agents' observations, actions, masks and terminals
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
from puffer_mlx.ppo.algorithms import Algorithm, AlgorithmStep, Epoch, choose_loss, discounts
from puffer_mlx.ppo.custom import find_advantages
from puffer_mlx.ppo.loss import Coefficients, Targets
from puffer_mlx.ppo.minibatch import LossSpec
from puffer_mlx.ppo.sections import Fields, Minibatch
from puffer_mlx.system.devices import building

FACTS = Facts(
    summary="PufferLib 4.0's, segments sampled by priority, advantages normalized",
    title="PufferLib 4.0's",
    release="4.0",
    carries_state=False,
)


def make(policy: Policy, config: Config, agents: int, one_cpu: bool) -> Algorithm:
    """Return PufferLib 4.0's training algorithm, which samples agents by priority.

    Arguments as of ``algorithms.make``.
    """
    train = config.train
    shape = config.minibatches, config.segments
    function = find_advantages(config)
    coefficients = discounts(train)
    if function is advantage.advantages:
        coefficients = coefficients._replace(formula=train.advantage)
    targets = partial(
        after_minibatch, discounts=coefficients, vtrace=train.vtrace, function=function
    )
    loss, metrics = choose_loss(config)
    return Algorithm(
        minibatches=_minibatches,
        loss=loss,
        metrics=metrics,
        loss_spec=LossSpec(Coefficients.of(train)),
        steps={
            "targets": AlgorithmStep(targets, "train_advantage", view=_verified_targets),
            "draw": AlgorithmStep(partial(_draw, train.prio_alpha), "train_priorities"),
        },
        draws=lambda key: 1 - mx.random.uniform(shape=shape, key=key),  # (K, S) in (0, 1]
    )


def _verified_targets(_: tuple, targets: tuple) -> tuple:
    """Return the targets with the advantages, the last array, replaced by sums over time.

    The sums are of the advantages' magnitudes.

    Some implementations return only these sums, so verification compares the sums.
    """
    *arrays, totals = targets
    return *arrays, mx.sum(mx.abs(totals), axis=0)


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
        totals: the advantages, or their magnitudes summed over time (1, N).
        uniforms: uniform random coefficients in (0, 1], (S,).
        beta: exponent of the importance weights, a scalar array.

    Returns:
        Indices of the agents (S,) int32, and targets.
    """
    rows, weights = priority.choose_segments(totals, uniforms, beta, alpha)
    final_observations = fields.get("final_observations")
    return rows, Targets(
        *take_targets(fields["logprobs"], values, adv, final_observations, rows, weights)
    )


def _minibatches(epoch: Epoch) -> Iterator[Minibatch]:
    """Yield minibatches of agents, sampled after the previous minibatch's values are written."""
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
