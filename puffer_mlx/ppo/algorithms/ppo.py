"""PPO as the field has it: advantages once a rollout, samples in a random order.

    targets:    once an epoch: advantages of the rollout's values
    shuffle:    once a pass: all samples in a random order (all segments, if the network has a
                memory), minibatch by minibatch: ``ppo/sections.py``
    gradients:  for each minibatch: forward, loss, which normalises the advantages, gradients
    optimise:   the optimizer's step

or ``epoch``, all minibatches in one operation: ``ppo/small_networks``. Nothing is written back.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.parts import Facts
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import small_networks
from puffer_mlx.ppo.advantage import rollout_advantages
from puffer_mlx.ppo.algorithms import Algorithm, Epoch, Step, discounts, score
from puffer_mlx.ppo.custom import find_advantages, functions
from puffer_mlx.ppo.loss import largest_kl
from puffer_mlx.ppo.sections import Fields, MeanNoise, MinibatchInputs, Pass, samples, segments
from puffer_mlx.system.devices import building

FACTS = Facts(
    about="the field's, advantages once a rollout, samples shuffled in each pass, of recurrent"
    " networks segments",
    title="PPO as the field has it",
    unread=(
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
    """See ``algorithms.make``."""
    train, K, by_segment = config.train, config.minibatches, policy.is_recurrent
    size = config.segments if by_segment else train.minibatch_size
    passes = Pass.of(by_segment, size, agents if by_segment else agents * train.horizon, K)
    numbers, function = discounts(train)._replace(rho_clip=1.0, c_clip=1.0), find_advantages(config)

    def targets(fields: Fields, values):
        """Advantages (T, N), without importance ratios."""
        return rollout_advantages(fields, values, None, numbers, function)

    fits = one_cpu and small_networks.fits(policy, train, *functions(config))
    return Algorithm(
        lambda epoch: islice(_all_passes(passes, epoch), K),
        *score(policy, config),
        steps={
            "targets": Step(targets, "train_advantage"),
            "shuffle": Step(partial(_shuffle, policy), "train_gather", compiled=False),
            "epoch": Step(small_networks.Epochs(policy, train), "train_minibatches", False),
        },
        draws=lambda key: mx.random.split(key, passes.count),  # a key for each pass
        at_once=partial(_at_once, passes, K) if fits else None,
        largest_kl=largest_kl(train.target_kl),
    )


def _all_passes(passes: Pass, epoch: Epoch) -> Iterator[MinibatchInputs]:
    """The minibatches of all passes; the last pass may be needed in part."""
    fields, states = epoch.fields, epoch.states()
    learned = epoch.learned()
    with building:
        weights = mx.array(learned, mx.float32)
    adv = epoch.run("targets", fields, epoch.values)
    for order in _orders(passes, learned, epoch.draws):
        yield from epoch.run("shuffle", fields, adv, states, weights, order)


def _at_once(passes: Pass, K: int, epoch: Epoch, *before: Any) -> tuple:
    """All of an epoch's minibatches in one operation."""
    fields, numbers = epoch.fields, epoch.scheduled
    learned = epoch.learned()
    adv = epoch.run("targets", fields, epoch.values)
    orders = [*_orders(passes, learned, epoch.draws)]
    with building:
        order = mx.concatenate(orders)[:K]
        if epoch.noise is not None:
            fields, adv, order = _moved(epoch.noise, fields, adv, order)
    inputs = *before, fields, adv, order, numbers.lr, numbers.ent_coef
    *after, metrics, ok = epoch.run("epoch", *inputs)
    return *after, adv, metrics, ok


def _moved(
    noise: MeanNoise, fields: Fields, adv: mx.array, order: mx.array
) -> tuple[Fields, mx.array, mx.array]:
    """A rollout of the K M samples of all minibatches, each with noise of its own, as one step."""
    T, (K, M) = len(adv), order.shape
    names = "observations", "actions", "masks", "logprobs", "values"
    arrays = {name: fields[name][:T] for name in names if fields[name] is not None} | {"adv": adv}
    rows = order.reshape(-1)
    taken = {n: mx.take(a.flatten(0, 1), rows, axis=0)[None] for n, a in arrays.items()}
    taken["actions"] -= noise.draw(K, (M, fields["actions"].shape[-1])).flatten(0, 1)[None]
    return {**fields, **taken}, taken.pop("adv"), mx.arange(K * M, dtype=mx.int32).reshape(K, M)


def _orders(passes: Pass, learned: Any, keys: mx.array) -> Iterator[mx.array]:
    """Each pass's order: of all agents, or of the samples that are learned from."""
    with building:
        if passes.by_segment:
            numbers = mx.arange(learned.shape[1], dtype=mx.int32)
        else:
            numbers = mx.array(learned.reshape(-1).nonzero()[0], mx.int32)
    for key in keys:
        with building:
            order = passes.order(key, numbers)
        yield order


def _shuffle(
    policy: Policy, fields: Fields, adv: mx.array, states: Any, learned: mx.array, order: mx.array
) -> list[MinibatchInputs]:
    """A pass's minibatches.

    Args:
        policy: what is trained.
        fields: the rollout's.
        adv: (T, N).
        states: the network's, of N agents; None: its initial one, or it has no memory.
        learned: (T, N) float32, 1 for steps that are learned from.
        order: (K, M) int32 of samples; for a network with memory (K, S) of agents.
    """
    if not policy.is_recurrent:
        return samples(fields, adv, order)
    agents = mx.split(order, len(order))
    return [segments(policy, fields, adv, learned, states, rows.reshape(-1)) for rows in agents]
