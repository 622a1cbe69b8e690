"""The steps of a minibatch, as functions that are compiled in one place.

PufferLib 4.0's (``puffer4``):

    targets:    advantages over all rows
    draw:       priorities -> S rows and what is compared with them
    gather:     the rows' observations, actions, masks and terminals
    gradients:  forward over (T, S), loss, gradients
    optimise:   clip, the optimizer's step; nothing if the loss or a gradient isn't finite
    write_back: the rows' new ratios and values

All run for every minibatch: advantages change within an epoch once a row has been trained on, as
upstream.

5.0's (``puffer5``), whose minibatch is the next S of the N rows, and which writes nothing back:

    split:      once an epoch: all rows, S by S; of each S what the forward pass reads, and what
                the result is compared with
    gradients:  forward over (T, S) from the rollout's recurrent states, advantages of the values
                that it gives, loss, gradients
    optimise:   as above

PPO as the field has it (``ppo``), which writes nothing back either:

    targets:    once an epoch: advantages of the rollout's values
    shuffle:    once a pass: all samples in a random order (all segments, if the network has a
                memory), minibatch by minibatch: ``ppo/shuffle.py``
    gradients:  forward, loss, which normalises the advantages, gradients
    optimise:   as above

or ``epoch``, all minibatches in one operation: ``ppo/small_networks``.

``ppo/sections.py`` makes the minibatches, ``ppo/gradients.py`` learns from one.

``act`` is the rollout's, ``act_by_seats`` that of several policies; ``logprobs`` is the forward
pass alone, for comparing the two.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Train
from puffer_mlx.ops import put_rows
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import optimizers, precision, small_networks
from puffer_mlx.ppo.advantage import configured_advantages
from puffer_mlx.ppo.gradients import Gradients
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.ppo.optimizers import Optimizer
from puffer_mlx.ppo.sections import Sections
from puffer_mlx.ppo.shuffle import Fields
from puffer_mlx.system.backend import backend

Step = Callable[..., Any]


class Executables(NamedTuple):
    """The functions of a run, compiled where that pays; which ones an algorithm calls: see above.

    ``act``, ``act_by_seats`` and ``step`` are for the rollout's device, the others for the
    learner's. Where another thread builds graphs at the same time, ``devices.building`` is held
    during each call.
    """

    act: Callable[..., Any]
    act_by_seats: Callable[..., Any]
    step: Callable[..., Any]
    targets: Callable[..., Any]
    draw: Callable[..., Any]
    split: Callable[..., Any]
    shuffle: Callable[..., Any]
    gather: Callable[..., Any]
    gradients: Callable[..., Any]
    optimise: Callable[..., Any]
    write_back: Callable[..., Any]
    logprobs: Callable[..., Any]
    epoch: Callable[..., Any]


def compile_update(
    policy: Policy, train: Train, summed: Callable[[Step], Step] = lambda step: step
) -> Executables:
    """Make a run's functions; everything that is compiled is compiled here.

    Numbers that change during a run (schedules, random draws) are arguments; those that don't are
    constants of the compiled code.

    Args:
        policy: what is trained.
        train: section [train].
        summed: makes of a function that gives a minibatch's gradients one that gives those of
            several processes' minibatches together.
    """
    sections, learning = Sections(policy, train), Gradients(policy, train)
    # On a CPU only what runs often on large arrays is compiled. A fused kernel takes the compiler
    # 0.4 s, again for each constant in it; compiling the rest (many constants, small arrays) made a
    # first start half a minute longer, for 1 % of the speed. On a GPU the steps are kernels of our
    # own, with nothing to fuse: there compiling saves building their graphs in Python again.
    small = mx.compile if backend() != "cpu" else lambda function: function
    return Executables(
        act=mx.compile(partial(_act, policy)),
        act_by_seats=mx.compile(partial(_act_by_seats, policy)),
        step=mx.compile(partial(_step, policy)),
        targets=small(partial(_targets, train)),
        draw=small(sections.draw),
        split=small(sections.split),
        shuffle=sections.shuffle,
        gather=small(sections.gather),
        gradients=mx.compile(summed(learning.gradients)),
        optimise=small(partial(_optimise, optimizers.find(train.optimizer), train)),
        write_back=small(put_rows),
        logprobs=mx.compile(learning.logprobs),
        epoch=small_networks.Epochs(policy, train),
    )


def _act(policy: Policy, weights, observations, state, noise, mask, terminals):
    """One step of a group.

    Returns:
        Actions, log-probabilities and values (heads + 2, n) float32, in one array because the host
        reads them; the network's state.
    """
    keep = policy.keep(terminals)
    actions, logprobs, values, state = policy.act(weights, observations, state, noise, mask, keep)
    return mx.concatenate([actions.T, logprobs[None], values[None]]), state


def _act_by_seats(policy: Policy, weights, observations, state, noise, mask, terminals, rows, back):
    """``_act`` of agents for whom several policies act.

    Args:
        policy: what all of them are.
        weights: a list with the weights of each.
        observations: (n, D) of all agents; likewise the next four.
        state: the network's.
        noise: (n, heads).
        mask: (n, A) or None.
        terminals: (n,).
        rows: a list with the agents of each policy, int32; together all n.
        back: (n,) int32, where each agent is when those of each policy are behind one another.

    Returns:
        As ``_act``, of all agents in their order.
    """
    found = []
    for own, chosen in zip(weights, rows, strict=True):
        given = [observations, state, noise, terminals]
        seen, before, drawn, ended = tree_map(lambda a, chosen=chosen: a[chosen], given)
        legal = None if mask is None else mask[chosen]
        found.append(_act(policy, own, seen, before, drawn, legal, ended))
    outputs, states = zip(*found, strict=True)
    state = tree_map(lambda *parts: mx.concatenate([*parts])[back], *states)
    return mx.concatenate([*outputs], axis=1)[:, back], state


def _step(policy: Policy, weights, observations, state, terminals):
    """``_act`` without choosing actions, to measure the policy's part of its time."""
    return policy.step(weights, observations, state, policy.keep(terminals))


def _targets(train: Train, fields: Fields, values, ratios):
    """Advantages (T, N)."""
    T, finals = values.shape[0], fields.get("finals")
    return configured_advantages(train)(
        values,
        fields["rewards"][:T],
        fields["terminals"][:T],
        ratios if train.vtrace else None,
        finals=None if finals is None else finals[:T],
        form=train.advantage,
    )


def _optimise(optimizer: Optimizer, train: Train, weights, state, scaler, grads, metrics, lr):
    """New weights, optimizer's state and scaler; whether (a scalar) the minibatch counted."""
    total = METRICS.index("total")
    loss = metrics[total : total + 1].squeeze(0)  # a view: an index would copy it
    weights, state, ok = optimizer.step(weights, grads, state, loss, lr, train)
    return weights, state, precision.next_scaler(scaler, ok, train.precision), ok
