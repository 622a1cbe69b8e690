"""Functions of an update, and the state that an update changes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.ops.verification import verified
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import minibatch, optimizers, precision, sections
from puffer_mlx.ppo.algorithms import Algorithm, Step
from puffer_mlx.ppo.gradients import gradients
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import device_memory
from puffer_mlx.system.plain_functions import record

Function = Callable[..., Any]


class TrainState(NamedTuple):
    """State that training changes: weights, the optimizer's state and loss scaling's, as trees."""

    weights: Any
    optimizer: Any
    scaler: precision.Scaler


@dataclass
class UpdateFunctions:
    """Functions that compute a minibatch's update. Hyperparameters are constants of them.

    Learning rate, entropy bonus and random numbers change during a run, so they are arguments.

    Attributes:
        gather: (fields, rows (S,)) -> ``Inputs`` of the forward pass.
        gradients: (weights, *inputs, targets, recurrent state, weight of the entropy bonus, loss
            scale) -> gradients, metrics, and ratios, values and advantages (T, S).
        optimise: (weights, optimizer state, scaler, gradients, metrics, learning rate) -> the three
            after the step, and whether the minibatch counted (a scalar).
        steps: the algorithm's own functions, by name.
    """

    gather: Function
    gradients: Function
    optimise: Function
    steps: dict[str, Step]


def compile_update(
    policy: Policy,
    config: Config,
    algorithm: Algorithm,
    summed: Callable[[Function], Function] = lambda gradients: gradients,
) -> UpdateFunctions:
    """Compile the functions of an update.

    Args:
        policy: the trained policy.
        config: a valid configuration; section [train] counts.
        algorithm: decides what minibatches are, and their loss.
        summed: turns the function of one process's gradients into that of all processes' mean.
    """
    plain = gradients(policy, config.train.precision, algorithm.loss)
    raw = _uncompiled(policy, config, algorithm, plain)
    steps = {
        name: step._replace(function=compile_on_gpu(step.function)) if step.compiled else step
        for name, step in raw.steps.items()
    }
    compiled = UpdateFunctions(
        gather=compile_on_gpu(raw.gather),
        gradients=mx.compile(summed(raw.gradients)),
        optimise=compile_on_gpu(raw.optimise),
        steps=steps,
    )
    return _verified(policy, config, raw, compiled)


class TooLarge(Exception):
    """The activations of an epoch's minibatches may take more memory than a GPU has to spare."""


def update_in_graph(policy: Policy, config: Config, algorithm: Algorithm) -> UpdateFunctions:
    """Return the same functions, not compiled, for a graph of an entire epoch.

    All minibatches of a graph may be in progress at a time. So ``gradients`` raises TooLarge where
    they store more activations than there is memory for. Where ``counts_at_once``, ``optimise``
    leaves the scaler as it is.
    """
    plain = gradients(policy, config.train.precision, algorithm.loss)

    def limited(*arguments: Any) -> tuple:
        if activations(config) > device_memory() // 8:
            raise TooLarge
        return plain(*arguments)

    raw = _uncompiled(policy, config, algorithm, limited, counts=not counts_at_once(config))
    return _verified(policy, config, raw, raw)


def _uncompiled(
    policy: Policy, config: Config, algorithm: Algorithm, plain: Function, counts: bool = True
) -> UpdateFunctions:
    """Return the functions of an update without ``mx.compile``.

    Args:
        policy: the trained policy.
        config: a valid configuration; section [train] counts.
        algorithm: decides what minibatches are, and their loss.
        plain: gradients in several launches.
        counts: True to count skipped minibatches in ``optimise``.
    """
    train = config.train
    return UpdateFunctions(
        gather=partial(sections.gather, policy),
        gradients=minibatch.with_fused_gradients(
            plain, policy, train.precision, algorithm.scoring, train.one_launch
        ),
        optimise=_optimiser(config, algorithm, counts),
        steps=dict(algorithm.steps),
    )


def _verified(
    policy: Policy, config: Config, raw: UpdateFunctions, run: UpdateFunctions
) -> UpdateFunctions:
    """Return functions that run as ``run``, whose kernels are verified in ``raw``."""
    train = config.train
    check = partial(verified, context=f"{policy} {train}", kind=train.precision)
    steps = {
        name: step._replace(function=check(step.function, run.steps[name].function, view=step.view))
        for name, step in raw.steps.items()
    }
    return UpdateFunctions(
        gather=check(raw.gather, run.gather),
        gradients=check(raw.gradients, run.gradients, example=_with_rewards),
        optimise=check(raw.optimise, run.optimise, view=_change),
        steps=steps,
    )


def _with_rewards(arguments: tuple) -> tuple:
    """Return the arguments of ``gradients`` with random advantages or rewards, of the order of 1.

    Those of a run's first epoch may be so small that a wrong sign of the policy's gradient changes
    the gradients of the weights by less than rounding does.
    """
    *others, targets, recurrent, ent_coef, scale = arguments
    if isinstance(targets, tuple):
        names = {"adv", "rewards"} & {*targets._fields}  # type: ignore
        key = mx.random.key(0)
        drawn: dict[str, Any] = {
            name: mx.random.normal(getattr(targets, name).shape, key=key) for name in names
        }
        if "moments" in targets._fields:  # type: ignore
            drawn["moments"] = None  # they are of the real advantages
        targets = targets._replace(**drawn)  # type: ignore
    return *others, targets, recurrent, ent_coef, scale


def _change(before: tuple, after: tuple) -> tuple:
    """Return an optimizer's step with the change of the weights in place of the weights."""
    weights, *others = after
    return tree_map(lambda new, old: new - old, weights, before[0]), *others


def counts_at_once(config: Config) -> bool:
    """Return True if skipped minibatches are counted once per epoch.

    fp16 needs the count after each minibatch: it decides the loss scale of the next one.
    """
    return config.train.precision != "fp16"


def activations(config: Config) -> int:
    """Return about how many bytes an epoch's minibatches store between their launches.

    An upper estimate: MLX holds what ten parts of a graph in progress use, and frees the rest.
    """
    train, policy = config.train, config.policy
    numbers = 12 * policy.hidden_size * (policy.num_layers + 1)  # of a sample, with gates
    size = 4 if train.precision == "fp32" else 2
    return config.minibatches * train.minibatch_size * numbers * size


def compile_on_gpu(function: Function) -> Function:
    """Return the function compiled on a GPU, and as it is on a CPU.

    A fused CPU kernel takes the compiler 0.4 s, again for each constant in it: compiling functions
    of small arrays made a first start half a minute longer, for 1 % of the speed. On a GPU these
    functions are our kernels, with nothing to fuse: there compiling saves building their
    graphs in Python again.
    """
    return mx.compile(function) if backend() != "cpu" else function


def _optimiser(config: Config, algorithm: Algorithm, counts: bool) -> Function:
    optimizer = optimizers.from_config(config)
    move = partial(optimizer.step, **optimizer.numbers(config.train))
    kind = config.train.precision if counts else None
    return partial(_optimise, move, kind, algorithm.metrics)


def _optimise(move: Function, kind: str | None, names, weights, state, scaler, grads, metrics, lr):
    """Make the optimizer's step.

    Args:
        move: the optimizer's ``step``.
        kind: ``train.precision``; None leaves the scaler as it is.
        names: names of the metrics.
        weights: float32.
        state: the optimizer's.
        scaler: loss scaling's.
        grads: gradients.
        metrics: (7,), or as many as there are names.
        lr: learning rate, a scalar array.

    Returns:
        New weights, optimizer state and scaler, and whether the minibatch counted (a scalar).
    """
    total = names.index("total")
    loss = metrics[total : total + 1].squeeze(0)  # a view: an index would copy it
    weights, state, ok = move(weights, grads, state, loss, lr)
    if kind is not None:
        scaler = precision.next_scaler(scaler, ok, kind)
    return weights, state, scaler, ok


record(__name__)
