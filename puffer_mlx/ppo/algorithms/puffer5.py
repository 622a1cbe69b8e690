"""PufferLib 5.0's algorithm: segments in order, advantages from the forward pass's values.

split: once per epoch, divide the rollout into minibatches of S agents.
gradients: for each minibatch, compute the forward pass over (T, S) from the rollout's recurrent
    states, advantages from its values, the loss and gradients.
optimise: for each minibatch, make the optimizer's step.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.config.components import Facts
from puffer_mlx.ops import split_rows
from puffer_mlx.ops.gpu.launch import indices
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import closed_form, minibatch
from puffer_mlx.ppo.advantage import Discounts, advantages
from puffer_mlx.ppo.algorithms import Algorithm, AlgorithmStep, Epoch, choose_loss, discounts
from puffer_mlx.ppo.custom import find_advantages
from puffer_mlx.ppo.loss import Coefficients, Forward, Targets
from puffer_mlx.ppo.sections import Fields, Minibatch
from puffer_mlx.system.devices import building
from puffer_mlx.system.plain_functions import record

FACTS = Facts(
    summary="5.0's, segments in order, advantages from the values of the same forward pass",
    title="PufferLib 5.0's",
    release="5.0",
    settings_file="puffer5.ini",
    unused=("train.prio_alpha", "train.prio_beta0", "train.advantage"),
    limits=(1e6, -20.0, 2.0),
    in_order=True,
    lags=True,
    evaluates_apart=True,
    saves_after=1,
)


def make(policy: Policy, config: Config, agents: int, one_cpu: bool) -> Algorithm:
    """Return PufferLib 5.0's training algorithm, which takes agents in order.

    It recomputes the advantages of each minibatch. Arguments as of ``algorithms.make``.
    """
    train = config.train
    coefficients = discounts(train)
    function = find_advantages(config)
    loss, metrics = choose_loss(config, recomputes=True)
    spec = None
    if loss is None and function is advantages:
        spec = minibatch.LossSpec(Coefficients.of(train), coefficients, train.vtrace)
    supports_fused = partial(
        minibatch.supports_fused, policy, train.precision, spec, train.one_launch
    )
    return Algorithm(
        minibatches=partial(_minibatches, config.minibatches, config.segments, supports_fused),
        loss=loss,
        recompute=partial(recompute_advantages, policy, coefficients, train.vtrace, function),
        metrics=metrics,
        loss_spec=spec,
        steps={"split": AlgorithmStep(partial(_split, policy), "train_gather")},
        normalises=False,
    )


def recompute_advantages(
    policy: Policy,
    discounts: Discounts,
    vtrace: bool,
    function: Callable[..., mx.array],
    forward: Forward,
    targets: Targets,
) -> mx.array:
    """Compute advantages (T*S,) from the values of a forward pass, without gradients.

    Args:
        policy: the policy to train.
        discounts: coefficients of the advantages.
        vtrace: True to clip advantages by the ratios of the new to the old probabilities.
        function: ``advantage.advantages``, or a custom function with the same arguments.
        forward: forward pass of the minibatch.
        targets: old log-probabilities, rewards, terminals and final observations.
    """
    weights = tree_map(mx.stop_gradient, forward.weights["decoder"])
    y = mx.stop_gradient(forward.y)
    ratios = None
    if vtrace:
        logprob = closed_form.action_logprobs(
            policy.decoder, weights, y, forward.actions, forward.masks
        )
        ratios = mx.exp(logprob - targets.old_logprob).reshape(forward.shape)
    values = y[-1:].reshape(forward.shape)
    adv = function(
        values,
        targets.rewards,
        targets.terminals,
        ratios,
        final_observations=targets.final_observations,
        **discounts._asdict(),
    )
    return adv.reshape(-1)


def _minibatches(
    K: int, S: int, supports_fused: Callable[[], bool], epoch: Epoch
) -> Iterator[Minibatch]:
    """Yield K minibatches of S agents in order, starting again after the last agent.

    Args:
        K: minibatches per epoch.
        S: agents per minibatch.
        supports_fused: returns True if a fused kernel computes the gradients. The kernel then reads
            the rollout's observations in place.
        epoch: inputs of the epoch's minibatches.
    """
    fields = epoch.fields
    states = epoch.states()
    views = supports_fused()
    T = len(fields["actions"])
    with building:
        observations = fields["observations"][:T]
    if views:
        fields = {**fields, "observations": None}
    minibatches = epoch.run("split", fields, states, S)
    count = len(minibatches)
    if views:
        with building:
            rows = mx.split(indices(observations.shape[1]), count)
        for k in range(count):
            minibatches[k] = minibatches[k]._replace(observations=observations, view=rows[k])
    for k in range(K):
        next_one = minibatches.pop(0)
        if k + count < K:  # Used again. Otherwise its memory is freed.
            minibatches.append(next_one)
        yield next_one


def _split(policy: Policy, fields: Fields, states: Any, S: int) -> list[Minibatch]:
    """Divide a rollout into minibatches of S agents, in order.

    Args:
        policy: the policy to train.
        fields: the arrays of a rollout by name.
        states: recurrent states of all N agents at the start of the rollout. None for the initial
            states.
        S: agents per minibatch, a divisor of N.
    """
    T, N = fields["actions"].shape[:2]
    fields = {**fields, "not_done": policy.not_done(fields["terminals"])}
    arrays_by_name = {name: split_rows(a, S, T) for name, a in fields.items() if a is not None}
    minibatches = []
    for k in range(N // S):
        steps = {name: arrays[k] for name, arrays in arrays_by_name.items()}
        flat = {name: array.flatten(0, 1) for name, array in steps.items()}
        targets = Targets(
            flat["logprobs"],
            flat["values"],
            rewards=steps["rewards"],
            terminals=steps["terminals"],
            final_observations=steps.get("final_observations"),
        )
        state = None
        if states is not None:
            state = tree_map(lambda array, first=k * S: array[first : first + S], states)
        inputs = steps.get("observations"), flat["actions"], flat.get("masks")
        minibatches.append(Minibatch(*inputs, steps.get("not_done"), targets, state))
    return minibatches


record(__name__)
