"""Standard PPO: advantages once per rollout, and several passes over its samples in random order.

    targets:    once per epoch: advantages from the rollout's values
    shuffle:    once per pass: shuffle the samples (the segments, if the network is recurrent) and
                divide them into minibatches: ``ppo/sections.py``
    gradients:  for each minibatch: forward pass, loss with normalised advantages, gradients
    optimise:   the optimizer's step

``epoch`` computes all minibatches in one operation instead: ``ppo/small_networks``.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.components import Facts
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import small_networks
from puffer_mlx.ppo.advantage import Discounts, rollout_advantages
from puffer_mlx.ppo.algorithms import Algorithm, AlgorithmStep, Epoch, choose_loss, discounts
from puffer_mlx.ppo.custom import custom_functions, find_advantages
from puffer_mlx.ppo.loss import largest_kl
from puffer_mlx.ppo.sections import Fields, Minibatch, Pass, samples, segments
from puffer_mlx.system.devices import building

FACTS = Facts(
    summary="standard PPO, advantages once per rollout, samples (recurrent networks: segments)"
    " shuffled in each pass",
    title="standard PPO",
    unused=(
        "train.prio_alpha",
        "train.prio_beta0",
        "train.advantage",
        "train.vtrace",
        "train.vtrace_rho_clip",
        "train.vtrace_c_clip",
    ),
    by_samples=True,
    stops_by_kl=True,
)


def make(policy: Policy, config: Config, agents: int, one_cpu: bool) -> Algorithm:
    """Return the standard PPO algorithm, which trains in shuffled passes over a rollout.

    Arguments as of ``algorithms.make``.
    """
    train = config.train
    K = config.minibatches
    if policy.is_recurrent:
        passes = Pass.of(True, config.segments, agents, K)
    else:
        passes = Pass.of(False, train.minibatch_size, agents * train.horizon, K)
    coefficients = discounts(train)._replace(rho_clip=1.0, c_clip=1.0)
    function = find_advantages(config)
    fits = one_cpu and small_networks.supports_epoch(policy, train, *custom_functions(config))
    loss, metrics = choose_loss(config)
    return Algorithm(
        minibatches=partial(_minibatches, passes, K),
        loss=loss,
        metrics=metrics,
        steps={
            "targets": AlgorithmStep(partial(_targets, coefficients, function), "train_advantage"),
            "shuffle": AlgorithmStep(partial(_shuffle, policy), "train_gather", compiled=False),
            "epoch": AlgorithmStep(
                small_networks.EpochOperation(policy, train), "train_minibatches", False
            ),
        },
        draws=lambda key: mx.random.split(key, passes.count),  # a key for each pass
        at_once=partial(_at_once, passes, K) if fits else None,
        largest_kl=largest_kl(train.target_kl),
    )


def _targets(
    coefficients: Discounts, function: Callable[..., mx.array], fields: Fields, values: mx.array
) -> mx.array:
    """Return a rollout's advantages (T, N), computed without importance ratios."""
    return rollout_advantages(fields, values, None, coefficients, function)


def _minibatches(passes: Pass, K: int, epoch: Epoch) -> Iterator[Minibatch]:
    """Yield an epoch's K minibatches, in several passes over the rollout's shuffled samples.

    The last pass may be incomplete.
    """
    fields = epoch.fields
    states = epoch.states()
    trainable = epoch.trainable()
    with building:
        weight = mx.array(trainable, mx.float32)
    adv = epoch.run("targets", fields, fields["values"])
    count = 0
    for order in _orders(passes, trainable, epoch.draws):
        for minibatch in epoch.run("shuffle", fields, adv, states, weight, order):
            if count == K:
                return
            count += 1
            yield minibatch


def _at_once(passes: Pass, K: int, epoch: Epoch, *train_state: Any) -> tuple:
    """Train on all minibatches of an epoch in one operation: see ``Algorithm.at_once``."""
    fields = epoch.fields
    scheduled = epoch.scheduled
    adv = epoch.run("targets", fields, fields["values"])
    orders = [*_orders(passes, epoch.trainable(), epoch.draws)]
    with building:
        order = mx.concatenate(orders)[:K]
        if epoch.noise is not None:
            fields, adv, order = _with_noise(epoch.noise, fields, adv, order)
    coefficients = scheduled.lr, scheduled.ent_coef, scheduled.loss
    *new_state, metrics, ok = epoch.run("epoch", *train_state, fields, adv, order, *coefficients)
    return *new_state, adv, metrics, ok


def _with_noise(
    noise: mx.array, fields: Fields, adv: mx.array, order: mx.array
) -> tuple[Fields, mx.array, mx.array]:
    """Gather the K M samples of all minibatches as one step, with RPO's noise on the actions.

    Args:
        noise: ``Epoch.noise``, (K, M, dimensions of an action).
        fields: the arrays of a rollout by name.
        adv: advantages, (T, N).
        order: sample indices of each minibatch, (K, M) int32.

    Returns:
        Arrays by name (1, K M, ...), advantages (1, K M), and sample indices (K, M) in these.
    """
    T = len(adv)
    K, M = order.shape
    names = "observations", "actions", "masks", "logprobs", "values"
    arrays = {name: fields[name][:T] for name in names if fields[name] is not None}
    arrays["adv"] = adv
    rows = order.reshape(-1)
    taken = {n: mx.take(a.flatten(0, 1), rows, axis=0)[None] for n, a in arrays.items()}
    taken["actions"] -= noise.flatten(0, 1)[None]
    adv = taken.pop("adv")
    return {**fields, **taken}, adv, mx.arange(K * M, dtype=mx.int32).reshape(K, M)


def _orders(passes: Pass, trainable: Any, keys: mx.array) -> Iterator[mx.array]:
    """Yield each pass's shuffled indices of agents, or of the samples to train on."""
    with building:
        if passes.by_segment:
            indices = mx.arange(trainable.shape[1], dtype=mx.int32)
        else:
            indices = mx.array(trainable.reshape(-1).nonzero()[0], mx.int32)
    for key in keys:
        with building:
            order = passes.order(key, indices)
        yield order


def _shuffle(
    policy: Policy, fields: Fields, adv: mx.array, states: Any, weight: mx.array, order: mx.array
) -> list[Minibatch]:
    """Divide a rollout into the minibatches of one pass.

    Args:
        policy: the policy to train.
        fields: the arrays of a rollout by name.
        adv: advantages, (T, N).
        states: recurrent states of all N agents at the start of the rollout. None for the initial
            states, or if the network isn't recurrent.
        weight: 1 for steps to train on, else 0, (T, N) float32.
        order: indices of samples (K, M) int32, or of agents (K, S) for a recurrent network.
    """
    if not policy.is_recurrent:
        return samples(fields, adv, order)
    agents = mx.split(order, len(order))
    return [segments(policy, fields, adv, weight, states, rows.reshape(-1)) for rows in agents]
