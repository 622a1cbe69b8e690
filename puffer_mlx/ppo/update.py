"""What an update changes, and what is compiled: a policy's functions, and an algorithm's steps."""

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.policy.choosing_on_gpu import choose, chooses_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import minibatch, optimizers, precision, sections
from puffer_mlx.ppo.algorithms import Algorithm
from puffer_mlx.ppo.gradients import gradients, logprobs
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import device_memory

Function = Callable[..., Any]


@dataclass(frozen=True)
class TrainState:
    """What training changes: weights, the optimizer's state and loss scaling's, trees of arrays."""

    weights: Any
    optimizer: Any
    scaler: precision.Scaler

    def arrays(self) -> tuple[Any, Any, precision.Scaler]:
        """Weights, the optimizer's state and the scaler."""
        return self.weights, self.optimizer, self.scaler


class Executables(NamedTuple):
    """A policy's functions, compiled where that pays, whatever trains it.

    ``act``, ``act_by_seats`` and ``step`` are for the rollout's device, the others for the
    learner's: ``logprobs`` is the forward pass alone, ``gather`` gives what it reads. Where another
    thread builds graphs at the same time, ``devices.building`` is held during each call.
    """

    act: Function
    act_by_seats: Function
    step: Function
    gather: Function
    logprobs: Function


def compile_update(policy: Policy, kind: str = "fp32") -> Executables:
    """Compile a policy's functions, to be trained in a ``train.precision``."""
    return Executables(
        act=mx.compile(partial(_act, policy)),
        act_by_seats=mx.compile(partial(_act_by_seats, policy)),
        step=mx.compile(partial(_step, policy)),
        gather=_small(partial(sections.gather, policy)),
        logprobs=mx.compile(partial(logprobs, policy, kind)),
    )


def compile_steps(
    policy: Policy,
    config: Config,
    algorithm: Algorithm,
    summed: Callable[[Function], Function] = lambda step: step,
) -> Any:
    """Compile what trains on a minibatch: ``gradients``, ``optimise`` and the algorithm's own.

    Numbers that change during a run (schedules, random draws) are arguments; those that don't are
    constants of the compiled code.

    Args:
        policy: what is trained.
        config: whose section [train] counts.
        algorithm: by which.
        summed: makes of a function that gives a minibatch's gradients one that gives those of
            several processes' minibatches together.
    """
    own = {
        name: _small(step.function) if step.compiled else step.function
        for name, step in algorithm.steps.items()
    }
    step = summed(_in_one(policy, config, algorithm, _plain(policy, config, algorithm)))
    optimise = _small(_optimiser(config, algorithm))
    return by_name({"gradients": mx.compile(step), "optimise": optimise, **own})


class TooLarge(Exception):
    """The activations of an epoch's minibatches may take more memory than a GPU has to spare."""


def steps_in_one(policy: Policy, config: Config, algorithm: Algorithm) -> Any:
    """The same steps for what compiles whole epochs, whose minibatches may all be under way.

    ``gradients`` raises TooLarge where they store more activations than there is room for. Where
    ``counts_at_once``, ``optimise`` leaves the scaler as it is.
    """

    def plain(*arguments: Any) -> tuple:
        if activations(config) > device_memory() // 8:
            raise TooLarge
        return _plain(policy, config, algorithm)(*arguments)

    own = {name: step.function for name, step in algorithm.steps.items()}
    step = _in_one(policy, config, algorithm, plain)
    optimise = _optimiser(config, algorithm, counts=not counts_at_once(config))
    gather = partial(sections.gather, policy)
    return by_name({"gather": gather, "gradients": step, "optimise": optimise, **own})


def counts_at_once(config: Config) -> bool:
    """Whether minibatches may be counted at an epoch's end: no gradient is scaled by the count."""
    return config.train.precision != "fp16"


def activations(config: Config) -> int:
    """About how many bytes an epoch's minibatches store between their launches, on the high side.

    MLX holds what ten parts of a graph use that are under way, and frees the rest.
    """
    train, policy = config.train, config.policy
    numbers = 12 * policy.hidden_size * (policy.num_layers + 1)  # of a sample, with gates
    size = 4 if train.precision == "fp32" else 2
    return config.minibatches * train.minibatch_size * numbers * size


def _plain(policy: Policy, config: Config, algorithm: Algorithm) -> Function:
    return gradients(policy, config.train.precision, algorithm.loss)


def _in_one(policy: Policy, config: Config, algorithm: Algorithm, plain: Function) -> Function:
    train = config.train
    return minibatch.in_one(plain, policy, train.precision, algorithm.scoring, train.one_launch)


def _optimiser(config: Config, algorithm: Algorithm, counts: bool = True) -> Function:
    optimizer = optimizers.of(config)
    move = partial(optimizer.step, **optimizer.numbers(config.train))
    step = partial(_optimise, move, config.train.precision, algorithm.metrics)

    def uncounted(weights, state, scaler, *others):
        weights, state, _, ok = step(weights, state, scaler, *others)
        return weights, state, scaler, ok

    return step if counts else uncounted


def by_name(functions: Mapping[str, Function]) -> Any:
    """Functions as a NamedTuple."""
    return namedtuple("Steps", functions)(*functions.values())


def _small(function: Function) -> Function:
    """Compile what doesn't run often on large arrays; on a CPU it stays as it is.

    There a fused kernel takes the compiler 0.4 s, again for each constant in it; compiling the rest
    (many constants, small arrays) made a first start half a minute longer, for 1 % of the speed. On
    a GPU the steps are kernels of our own, with nothing to fuse: there compiling saves building
    their graphs in Python again.
    """
    return mx.compile(function) if backend() != "cpu" else function


def _act(policy: Policy, weights, observations, state, noise, mask, terminals):
    """One step of a group.

    Returns:
        Actions, log-probabilities and values (heads + 2, n) float32, in one array because the host
        reads them; the network's state.
    """
    keep = policy.keep(terminals)
    if noise is not None and chooses_on_gpu(policy, len(observations)):
        outputs, values, state = policy.step(weights, observations, state, keep)
        return choose(policy, outputs, values, noise, mask), state
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
    parts = []
    for each, chosen in zip(weights, rows, strict=True):
        arrays = [observations, state, noise, terminals]
        seen, before, drawn, ended = tree_map(lambda a, chosen=chosen: a[chosen], arrays)
        legal = None if mask is None else mask[chosen]
        parts.append(_act(policy, each, seen, before, drawn, legal, ended))
    outputs, states = zip(*parts, strict=True)
    state = tree_map(lambda *parts: mx.concatenate([*parts])[back], *states)
    return mx.concatenate([*outputs], axis=1)[:, back], state


def _step(policy: Policy, weights, observations, state, terminals):
    """``_act`` without choosing actions, to measure the policy's part of its time."""
    return policy.step(weights, observations, state, policy.keep(terminals))


def _optimise(move: Function, kind: str, names, weights, state, scaler, grads, metrics, lr):
    """New weights, optimizer's state and scaler; whether (a scalar) the minibatch counted."""
    total = names.index("total")
    loss = metrics[total : total + 1].squeeze(0)  # a view: an index would copy it
    weights, state, ok = move(weights, grads, state, loss, lr)
    return weights, state, precision.next_scaler(scaler, ok, kind), ok
