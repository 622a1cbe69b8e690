"""Functions of an update, and the state that an update changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.ops.pack import BLOCK, PackedTree, pack_arrays
from puffer_mlx.ops.verification import verified
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import minibatch, optimizers, precision, sections
from puffer_mlx.ppo.algorithms import Algorithm, Step
from puffer_mlx.ppo.gradients import minibatch_loss
from puffer_mlx.ppo.loss import Coefficients
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import device_memory
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import leaves

Function = Callable[..., Any]


class TrainState(NamedTuple):
    """State that training changes: weights, the optimizer's state and loss scaling's, as trees."""

    weights: Any
    optimizer: Any
    scaler: precision.Scaler


@dataclass
class UpdateFunctions:
    """Functions that compute a minibatch's update. Hyperparameters are constants of them.

    Learning rate, entropy coefficient, scheduled coefficients of the loss and random numbers
    change during a run, so they are arguments.

    Attributes:
        gradients: (weights, minibatch, entropy coefficient, loss scale, ``Scheduled.loss``) -> the
            loss's results and its gradients by the weights: ``mx.value_and_grad`` of
            ``gradients.minibatch_loss``. Gradients contain the loss scale. Kernels return None for
            the loss.
        optimise: (weights, optimizer state, scaler, gradients, metrics, learning rate) -> the three
            after the step, and a scalar, true if the minibatch counted.
        steps: the algorithm's functions by name, and ``gather``: (fields, rows (S,)) -> the
            ``Minibatch`` of these agents, without targets and states.
    """

    gradients: Function
    optimise: Function
    steps: dict[str, Step]


def compile_update(
    policy: Policy,
    config: Config,
    algorithm: Algorithm,
    summed: Callable[[Function], Function] = lambda gradients: gradients,
) -> UpdateFunctions:
    """Return the functions of an update, compiled.

    Args:
        policy: the policy to train.
        config: a valid configuration. Only section [train] is read.
        algorithm: defines minibatches and their loss.
        summed: wraps the function ``gradients`` of one process to return means over all processes.
    """
    raw = _uncompiled(policy, config, algorithm)
    steps = {
        name: step._replace(function=compile_on_gpu(step.function)) if step.compiled else step
        for name, step in raw.steps.items()
    }
    compiled = UpdateFunctions(
        gradients=mx.compile(summed(raw.gradients)),
        optimise=compile_on_gpu(raw.optimise),
        steps=steps,
    )
    return _verified(policy, config, raw, compiled)


class TooLarge(Exception):
    """The activations of an epoch's minibatches may take more memory than a GPU has to spare."""


def update_in_graph(policy: Policy, config: Config, algorithm: Algorithm) -> UpdateFunctions:
    """Return the functions of an update, not compiled, for a graph of an entire epoch.

    All minibatches of a graph may be in progress at a time. So ``gradients`` in several launches
    raises TooLarge if the activations that they store take too much memory. If ``counts_at_once``,
    ``optimise`` returns the scaler unchanged.
    """
    counts = not counts_at_once(config)
    raw = _uncompiled(policy, config, algorithm, in_graph=True, counts=counts)
    return _verified(policy, config, raw, raw)


def _uncompiled(
    policy: Policy,
    config: Config,
    algorithm: Algorithm,
    in_graph: bool = False,
    counts: bool = True,
) -> UpdateFunctions:
    """Return the functions of an update without ``mx.compile``.

    Args:
        policy: the policy to train.
        config: a valid configuration. Only section [train] is read.
        algorithm: defines minibatches and their loss.
        in_graph: True to limit the memory of activations: see ``update_in_graph``.
        counts: True to count skipped minibatches in ``optimise``.
    """
    train = config.train
    loss = partial(
        minibatch_loss,
        *(policy, train.precision, Coefficients.of(train)),
        *(algorithm.loss, algorithm.recompute),
    )
    gradients = mx.value_and_grad(loss)
    if in_graph:
        gradients = partial(_limited, gradients, config)
    if backend() != "cpu":
        kernels = policy, train.precision, algorithm.scoring, train.one_launch
        gradients = minibatch.with_fused_gradients(gradients, *kernels)
    optimizer = optimizers.from_config(config)
    move = partial(optimizer.step, **optimizer.hyperparameters(train))
    return UpdateFunctions(
        gradients=gradients,
        optimise=partial(_optimise, move, train.precision, counts, algorithm.metrics),
        steps={"gather": Step(partial(sections.gather, policy), "train_gather"), **algorithm.steps},
    )


def _limited(gradients: Function, config: Config, *arguments: Any) -> Any:
    """Return a minibatch's gradients.

    Raises:
        TooLarge: the activations of all minibatches may take more than 1/8 of the GPU's memory.
    """
    if activations(config) > device_memory() // 8:
        raise TooLarge
    return gradients(*arguments)


def _verified(
    policy: Policy, config: Config, raw: UpdateFunctions, run: UpdateFunctions
) -> UpdateFunctions:
    """Return the functions ``run``, whose GPU kernels are verified before their first use.

    Args:
        policy: the policy to train.
        config: a valid configuration.
        raw: functions that verification calls, not compiled.
        run: functions that training calls.
    """
    # Coefficients don't choose a kernel, but for whether they are 0.
    chosen = {
        name: bool(value) if isinstance(value, float) else value
        for name, value in vars(config.train).items()
        if name != "total_timesteps"
    }
    check = partial(verified, context=f"{policy} {chosen}", kind=config.train.precision)
    steps = {
        name: step._replace(
            function=check(step.function, run.steps[name].function, view=step.view, indexes=True)
        )
        for name, step in raw.steps.items()
    }
    return UpdateFunctions(
        gradients=check(raw.gradients, run.gradients, example=_with_rewards),
        optimise=check(raw.optimise, run.optimise, view=_change, example=_with_gradients),
        steps=steps,
    )


def _with_rewards(arguments: tuple) -> tuple:
    """Return the arguments of ``gradients`` with random advantages or rewards of the order of 1.

    Those of a run's first epoch may be so small that a wrong sign of the policy's gradient changes
    the gradients of the weights by less than rounding does.
    """
    weights, minibatch, *others = arguments
    key = mx.random.key(0)
    changed: dict[str, Any] = {"moments": None}  # they are of the real advantages
    for name in ("adv", "rewards"):
        array = getattr(minibatch.targets, name)
        if array is not None:
            changed[name] = mx.random.normal(array.shape, key=key)
    targets = minibatch.targets._replace(**changed)
    return weights, minibatch._replace(targets=targets), *others


def _with_gradients(arguments: tuple) -> tuple:
    """Return the arguments of ``optimise`` with normally distributed gradients.

    A minibatch's gradients may be matrices of low rank. Muon multiplies their singular values near
    0 by several hundred, so it would turn rounding to bf16 into a large part of the step.
    """
    weights, state, scaler, grads, *others = arguments
    keys = iter(mx.random.split(mx.random.key(0), len(leaves(grads))))
    drawn = tree_map(lambda g: mx.random.normal(g.shape, key=next(keys)), grads)
    if isinstance(grads, PackedTree):
        packed, squares = pack_arrays(leaves(drawn), BLOCK)
        drawn = PackedTree(packed, drawn, squares)
    return weights, state, scaler, drawn, *others


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
    """Estimate the bytes that an epoch's minibatches store between their launches.

    The estimate is high: MLX holds the arrays of ten parts of a graph in progress, and frees the
    others.
    """
    train = config.train
    layers = config.policy.num_layers + 1
    numbers = 12 * config.policy.hidden_size * layers  # of a sample, with gates
    size = 4 if train.precision == "fp32" else 2
    return config.minibatches * train.minibatch_size * numbers * size


def compile_on_gpu(function: Function) -> Function:
    """Return the function, compiled on a GPU and unchanged on a CPU.

    On a CPU, compiling these functions of small arrays would make a first start half a minute
    longer for 1 % of the speed. On a GPU, compiling saves building their graphs in Python again.
    """
    return mx.compile(function) if backend() != "cpu" else function


def _optimise(
    move: Function,
    kind: str,
    counts: bool,
    names: Sequence[str],
    weights: Any,
    state: Any,
    scaler: precision.Scaler,
    grads: Any,
    metrics: mx.array,
    lr: mx.array,
) -> tuple[Any, Any, precision.Scaler, mx.array]:
    """Make the optimizer's step.

    Args:
        move: the optimizer's ``step``.
        kind: ``train.precision``.
        counts: False to return the scaler unchanged.
        names: names of the metrics.
        weights: the policy's weights, float32.
        state: state of the optimizer.
        scaler: state of loss scaling.
        grads: gradients, multiplied by the loss scale in fp16.
        metrics: (7,), or one for each name.
        lr: learning rate, a scalar array.

    Returns:
        New weights, optimizer state and scaler, and a scalar, true if the minibatch counted.
    """
    if kind == "fp16":
        grads = tree_map(lambda grad: grad * (1 / scaler["scale"]), grads)
    total = names.index("total")
    loss = metrics[total : total + 1].squeeze(0)  # a view: an index would copy it
    weights, state, ok = move(weights, grads, state, loss, lr)
    if counts:
        scaler = precision.count_all(scaler, [ok], kind)
    return weights, state, scaler, ok


record(__name__)
