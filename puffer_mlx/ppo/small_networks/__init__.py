"""Train small policies on a CPU, with all minibatches of an epoch in one operation.

Gymnasium's control tasks need many small minibatches, for example 160 of 64 samples after every 512
steps of one environment. As an MLX graph, such a minibatch takes 1 ms, although the arithmetic
takes only 20 us.

The operation supports fp32 policies without recurrent state that consist of linear layers and
activations, and optimizers with an implementation in C. It computes the same as ``ppo/update.py``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Train
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.linear import ACTIVATION_CODES
from puffer_mlx.policy.decoders import Fused, Separate
from puffer_mlx.policy.distributions import UNBOUNDED
from puffer_mlx.policy.encoders.catalog import encoder_facts
from puffer_mlx.policy.networks.catalog import network_facts
from puffer_mlx.policy.policy import Policy, training_functions
from puffer_mlx.ppo import optimizers, precision
from puffer_mlx.ppo.loss import Coefficients, largest_kl
from puffer_mlx.trees import leaves

EPOCH = Implementation(
    ("ppo.gradients", "ppo.sections", "ppo.precision", "ppo.update"),
    "the epoch in one operation of ppo/small_networks",
    cpu="ppo_epoch",
    gemm=True,
)
MAX_LAYER_OUTPUT = 1 << 18  # elements; for larger outputs of a layer, MLX uses more cores

# A layer or an output head for ``tower.h``. Weights and biases are indices among the policy's
# arrays; -1 means no bias.
#   layer: (weight, bias, number of inputs, number of outputs, code of the activation)
#   head:  (weight, bias, first row of the weight, number of rows, first column of the output)
LayerSpec = tuple[int, int, int, int, int]


def supports_epoch(policy: Policy, train: Train, *functions: Callable[..., Any]) -> bool:
    """Return True if all minibatches of an epoch can be trained on in one operation.

    Args:
        policy: the policy to train.
        train: section [train] of the configuration.
        *functions: custom functions of the update, such as a loss.
    """
    if ":" in train.optimizer:  # a custom optimizer, MODULE:NAME
        return False
    optimizer = optimizers.find_optimizer(train.optimizer)
    return (
        optimizer.in_small_networks
        and train.precision == "fp32"
        and train.minibatch_size * policy.network.hidden <= MAX_LAYER_OUTPUT
        and encoder_facts(policy.encoder).activation is not None
        and network_facts(policy.network).add_c_layers is not None
        and type(policy.decoder) in (Fused, Separate)
        and policy.decoder.limits == UNBOUNDED
        and not policy.is_recurrent
        and EPOCH.choose(*functions, optimizer.step, *training_functions(policy)) is not None
    )


class TowerLayers:
    """List of a network's layers for the CPU extension, filled by ``NetworkFacts.add_c_layers``.

    Attributes:
        layers: the layers in the order of the forward pass.
    """

    def __init__(self) -> None:
        self.layers: list[LayerSpec] = []

    def add(
        self, kind: str, name: str, indices: Any, shapes: dict[str, tuple[int, ...]], *sizes: int
    ) -> None:
        """Add a dense layer to the list. The arguments are those of ``acting_in_c.CActor.add``.

        Args:
            kind: kind of the layer; only ``dense`` is supported.
            name: unused; ``CActor`` needs the name for error messages.
            indices: indices of the layer's arrays among all weights, by name.
            shapes: unused; ``CActor`` checks the shapes.
            sizes: number of outputs, number of inputs, and code of the activation.
        """
        assert kind == "dense", f"a network without recurrent state has no {kind}"
        width, inputs, activation = sizes
        self.layers.append((indices["weight"], indices.get("bias", -1), inputs, width, activation))


def describe_towers(policy: Policy, weights: Any) -> Any:
    """Describe a policy's layers and heads for the CPU extension, with weights as indices.

    A tower is the encoder and the layers of one network. Actions and value have a tower together,
    or one each if ``policy.separate_value``.

    Returns:
        (layers of each tower, heads of each tower, index of logstd or -1, number of choices of each
        action head): a ``Network`` in ``epoch.h``.
    """
    counter = iter(range(len(leaves(weights))))
    indices = tree_map(lambda _: next(counter), weights)
    decoder = indices["decoder"]
    action = policy.decoder.action
    A = action.logits
    if type(policy.decoder) is Fused:
        actions = (decoder["weight"], -1, 0, A, 0)
        value = (decoder["weight"], -1, A, 1, A)
    else:
        actions = (decoder["actions"]["weight"], decoder["actions"]["bias"], 0, A, 0)
        value = (decoder["value"]["weight"], decoder["value"]["bias"], 0, 1, A)
    towers = [indices, indices["critic"]] if policy.separate_value else [indices]
    heads = [[actions], [value]] if policy.separate_value else [[actions, value]]
    logstd = decoder["logstd"] if action.continuous else -1
    return [_tower(policy, tower) for tower in towers], heads, logstd, list(action.sizes)


def _tower(policy: Policy, indices: Any) -> list[LayerSpec]:
    """Return the layers of a policy's encoder and network for the CPU extension.

    Args:
        policy: the policy.
        indices: indices of the tower's arrays among all weights, a tree like the weights.
    """
    encoder: Any = policy.encoder
    first = indices["encoder"]
    code = ACTIVATION_CODES[encoder_facts(encoder).activation(encoder)]  # type: ignore
    layers = TowerLayers()
    network_facts(policy.network).add_c_layers(layers, policy.network, indices["network"])  # type: ignore
    sizes = encoder.inputs, policy.network.hidden
    return [(first["weight"], first.get("bias", -1), *sizes, code), *layers.layers]


class EpochOperation:
    """Train a policy on all minibatches of an epoch in one operation.

    Args:
        policy: the policy to train, for which ``supports_epoch`` is True.
        train: section [train] of the configuration.
    """

    def __init__(self, policy: Policy, train: Train) -> None:
        self._policy = policy
        self._train = train
        # Result of ``describe_towers``, created from the weights of the first call.
        self._network: Any = None

    def __call__(
        self,
        weights: Any,
        optimizer: Any,
        scaler: dict[str, mx.array],
        fields: dict[str, Any],
        adv: mx.array,
        order: mx.array,
        lr: mx.array,
        ent_coef: mx.array,
        scheduled: Mapping[str, mx.array] = {},
    ) -> tuple[Any, Any, dict[str, mx.array], mx.array, mx.array]:
        """Train on all minibatches of an epoch in one operation.

        Args:
            weights: tree of float32 arrays.
            optimizer: state of the optimizer.
            scaler: state of the loss scaler (``ppo/precision``), which counts minibatches.
            fields: the arrays of a rollout by name.
            adv: advantages, (T, N).
            order: sample indices t N + i of each minibatch, (K, M) int32.
            lr: learning rate, a scalar array.
            ent_coef: entropy coefficient, a scalar array.
            scheduled: coefficients of the loss with a schedule, scalar arrays by name.

        Returns:
            New weights, optimizer state and scaler; metrics (K, 7); and flags (K,) float32, 1 for
            each minibatch that counted, including one whose KL ended the epoch.
        """
        train = self._train
        reads = optimizers.find_optimizer(train.optimizer).reads
        if self._network is None:
            self._network = describe_towers(self._policy, weights)
        scheduled_values = {name: array.item() for name, array in scheduled.items()}
        coefficients = Coefficients.of(train)._replace(**scheduled_values)
        counts = mx.stack([scaler[name] for name in precision.COUNTER_NAMES])
        moments = optimizer["momentum"], optimizer["second_moment"]
        extension: Any = cpu_extension.load_extension()
        observations, targets, masks = _samples(fields, adv)
        hyperparameters = (
            *coefficients,
            train.max_grad_norm,
            largest_kl(train.target_kl),
            *(getattr(train, key) for key in reads),
        )
        *arrays, step, metrics, ok, counts = extension.ppo_epoch(
            *(leaves(tree) for tree in (weights, *moments)),
            optimizer["step"],
            lr,
            ent_coef,
            counts,
            observations,
            targets,
            masks,
            order,
            self._network,
            hyperparameters,
        )
        new = iter(arrays)
        weights, first, second = (
            tree_map(lambda _: next(new), tree) for tree in (weights, *moments)
        )
        state = {"momentum": first, "second_moment": second, "step": step}
        counted = dict(zip(precision.COUNTER_NAMES, mx.split(counts, 4), strict=True))
        scaler = {**scaler, **{name: count.reshape(()) for name, count in counted.items()}}
        return weights, state, scaler, metrics, ok


def _samples(
    fields: dict[str, Any], adv: mx.array
) -> tuple[mx.array, list[mx.array], mx.array | None]:
    """Flatten the arrays of a rollout (T, N) into T * N samples.

    Returns:
        A tuple of the observations; a list of actions, log-probabilities, values and advantages;
        and the action masks or None.
    """
    T, N = adv.shape

    def flat(name: str) -> mx.array:
        return fields[name][:T].reshape(T * N, -1)

    targets = [array.reshape(T * N) for array in (fields["logprobs"], fields["values"], adv)]
    masks = None if fields["masks"] is None else flat("masks")
    return flat("observations"), [flat("actions"), *targets], masks
