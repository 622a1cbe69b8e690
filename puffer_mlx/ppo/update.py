"""Build the functions that compute an update, and define the state that training changes."""

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
from puffer_mlx.ppo.algorithms import Algorithm, AlgorithmStep
from puffer_mlx.ppo.gradients import minibatch_loss
from puffer_mlx.ppo.loss import Coefficients
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import device_memory
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import leaves

Function = Callable[..., Any]


class TrainState(NamedTuple):
    """State of training between two updates: weights, optimizer state, loss scaler.

    Attributes:
        weights: the policy's weights, a tree of float32 arrays.
        optimizer: state of the optimizer, a tree of arrays.
        scaler: state of loss scaling, scalar arrays by name.
    """

    weights: Any
    optimizer: Any
    scaler: precision.Scaler


@dataclass
class UpdateFunctions:
    """Functions that compute the update of one minibatch.

    Constant hyperparameters are compiled into the functions. Learning rate, entropy coefficient and
    scheduled coefficients of the loss are arguments, because they change during a run.

    Attributes:
        gradients: (weights, minibatch, entropy coefficient, loss scale, ``Scheduled.loss``) ->
            results of ``gradients.minibatch_loss``, and gradients with respect to the weights,
            multiplied by the loss scale. Kernels return None for the loss.
        optimise: (weights, optimizer state, scaler, gradients, metrics, learning rate) -> new
            weights, optimizer state and scaler, and a scalar, true if the minibatch counted.
        steps: the algorithm's functions by name, and ``gather``: (fields, rows (S,)) ->
            ``Minibatch`` of the agents ``rows``, without targets and states.
    """

    gradients: Function
    optimise: Function
    steps: dict[str, AlgorithmStep]


def compile_update(
    policy: Policy,
    config: Config,
    algorithm: Algorithm,
    summed: Callable[[Function], Function] = lambda gradients: gradients,
) -> UpdateFunctions:
    """Return the compiled functions that compute a minibatch's update.

    Args:
        policy: the policy to train.
        config: a valid configuration. Only section [train] is read.
        algorithm: defines minibatches and their loss.
        summed: wraps ``UpdateFunctions.gradients`` to return means over all processes.
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
    """Error: an epoch's activations may take more than an eighth of the GPU's memory."""


def update_in_graph(policy: Policy, config: Config, algorithm: Algorithm) -> UpdateFunctions:
    """Return uncompiled functions of an update, for a graph of an entire epoch.

    A graph may compute all minibatches at the same time. If ``gradients`` would store too many
    activations, it raises ``TooLarge``. ``optimise`` returns the scaler unchanged if the caller
    counts skipped minibatches once per epoch (``counts_at_once``).
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
    """Return the uncompiled functions of an update: gradients, optimizer step, algorithm's steps.

    Args:
        policy: the policy to train.
        config: a valid configuration. Only section [train] is read.
        algorithm: defines minibatches and their loss.
        in_graph: True to limit the memory of activations: see ``update_in_graph``.
        counts: True if ``optimise`` counts skipped minibatches.
    """
    train = config.train
    loss = partial(
        minibatch_loss,
        policy,
        train.precision,
        Coefficients.of(train),
        algorithm.loss,
        algorithm.recompute,
    )
    gradients = mx.value_and_grad(loss)
    if in_graph:
        gradients = partial(_limited, gradients, config)
    if backend() != "cpu":
        kernels = policy, train.precision, algorithm.loss_spec, train.one_launch
        gradients = minibatch.with_fused_gradients(gradients, *kernels)
    optimizer = optimizers.from_config(config)
    move = partial(optimizer.step, **optimizer.hyperparameters(train))
    return UpdateFunctions(
        gradients=gradients,
        optimise=partial(_optimise, move, train.precision, counts, algorithm.metrics),
        steps={
            "gather": AlgorithmStep(partial(sections.gather, policy), "train_gather"),
            **algorithm.steps,
        },
    )


def _limited(gradients: Function, config: Config, *arguments: Any) -> Any:
    """Return a minibatch's gradients, unless an epoch's activations are too large.

    Raises:
        TooLarge: all minibatches' activations may take more than 1/8 of the GPU's memory.
    """
    if activation_bytes(config) > device_memory() // 8:
        raise TooLarge
    return gradients(*arguments)


def _verified(
    policy: Policy, config: Config, raw: UpdateFunctions, run: UpdateFunctions
) -> UpdateFunctions:
    """Wrap the functions of an update to verify their GPU kernels before the first use.

    Args:
        policy: the policy to train.
        config: a valid configuration.
        raw: functions that verification calls, not compiled.
        run: functions that training calls.
    """
    # The choice of a kernel depends on whether a coefficient is 0, but not on its value.
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
    """Replace the advantages or rewards in the arguments of ``gradients`` by normal random numbers.

    Advantages of the first epoch may be so small that a wrong sign of the policy's gradient would
    change the weights' gradients by less than rounding.
    """
    weights, minibatch, *rest = arguments
    key = mx.random.key(0)
    changed: dict[str, Any] = {"moments": None}  # moments of the replaced advantages
    for name in ("adv", "rewards"):
        array = getattr(minibatch.targets, name)
        if array is not None:
            changed[name] = mx.random.normal(array.shape, key=key)
    targets = minibatch.targets._replace(**changed)
    return weights, minibatch._replace(targets=targets), *rest


def _with_gradients(arguments: tuple) -> tuple:
    """Replace the gradients in the arguments of the optimizer's step by normal random numbers.

    A minibatch's gradients may be matrices of low rank. Muon multiplies singular values near 0 by
    several hundred, so rounding to bf16 would change the step considerably.
    """
    weights, state, scaler, grads, *rest = arguments
    keys = iter(mx.random.split(mx.random.key(0), len(leaves(grads))))
    random_grads = tree_map(lambda g: mx.random.normal(g.shape, key=next(keys)), grads)
    if isinstance(grads, PackedTree):
        packed, squares = pack_arrays(leaves(random_grads), BLOCK)
        random_grads = PackedTree(packed, random_grads, squares)
    return weights, state, scaler, random_grads, *rest


def _change(arguments: tuple, result: tuple) -> tuple:
    """Return an optimizer's result with its new weights replaced by the change of the weights."""
    weights, *rest = result
    return tree_map(lambda new, old: new - old, weights, arguments[0]), *rest


def counts_at_once(config: Config) -> bool:
    """Return True if skipped minibatches are counted once per epoch.

    fp16 needs the count after each minibatch, because it sets the next minibatch's loss scale.
    """
    return config.train.precision != "fp16"


def activation_bytes(config: Config) -> int:
    """Estimate the bytes of activations that an epoch's minibatches store between launches.

    This is an upper bound: MLX frees the arrays of most minibatches before the last one starts.
    """
    train = config.train
    layers = config.policy.num_layers + 1
    values_per_sample = 12 * config.policy.hidden_size * layers  # per sample, with gates
    size = 4 if train.precision == "fp32" else 2
    return config.minibatches * train.minibatch_size * values_per_sample * size


def compile_on_gpu(function: Function) -> Function:
    """Return the function, compiled on a GPU and unchanged on a CPU.

    On a CPU, compiling these functions of small arrays would take half a minute at the first start
    and gain 1 % of speed. On a GPU, compiling avoids building their graphs again in Python.
    """
    return mx.compile(function) if backend() != "cpu" else function


def _optimise(
    move: Function,
    precision_name: str,
    counts: bool,
    names: Sequence[str],
    weights: Any,
    state: Any,
    scaler: precision.Scaler,
    grads: Any,
    metrics: mx.array,
    lr: mx.array,
) -> tuple[Any, Any, precision.Scaler, mx.array]:
    """Apply an optimizer's step to the weights, and count the minibatch.

    Args:
        move: ``Optimizer.step`` with its hyperparameters.
        precision_name: ``train.precision``.
        counts: False to return the scaler unchanged.
        names: names of the metrics.
        weights: the policy's weights, float32.
        state: state of the optimizer.
        scaler: state of loss scaling.
        grads: gradients, multiplied by the loss scale in fp16.
        metrics: metrics of the loss, one per name.
        lr: learning rate, a scalar array.

    Returns:
        New weights, optimizer state and scaler, and a scalar, true if the minibatch counted.
    """
    if precision_name == "fp16":
        grads = tree_map(lambda grad: grad * (1 / scaler["scale"]), grads)
    total = names.index("total")
    loss = metrics[total : total + 1].squeeze(0)  # a view: an index would copy it
    weights, state, ok = move(weights, grads, state, loss, lr)
    if counts:
        scaler = precision.count_minibatches(scaler, [ok], precision_name)
    return weights, state, scaler, ok


record(__name__)
