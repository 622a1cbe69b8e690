"""Train a small policy on a CPU: all minibatches of an epoch in one operation of the extension.

Control tasks of Gymnasium need many small minibatches: 160 of 64 samples for every 512 steps of one
environment. An MLX graph takes 1 ms for each; the arithmetic takes about 20 us.

The operation supports fp32 policies without recurrent state that consist of linear layers and
activations, and optimizers that are implemented in C. It computes the same as ``ppo/update.py``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Train
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.linear import CODES
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
LARGEST = 1 << 18  # largest size of a layer's output; for larger ones MLX uses more cores

LayerSpec = tuple[int, int, int, int, int]  # fields of a Layer or a Head of ``tower.h``


def fits(policy: Policy, train: Train, *functions: Callable[..., Any]) -> bool:
    """Return True if an epoch can be one operation.

    Args:
        policy: the policy to train.
        train: section [train] of the configuration.
        *functions: plain functions of the update, e.g. a loss.
    """
    if ":" in train.optimizer:
        return False
    optimizer = optimizers.find(train.optimizer)
    return (
        optimizer.in_small_networks
        and train.precision == "fp32"
        and train.minibatch_size * policy.network.hidden <= LARGEST
        and encoder_facts(policy.encoder).activation is not None
        and network_facts(policy.network).add_c_layers is not None
        and type(policy.decoder) in (Fused, Separate)
        and policy.decoder.limits == UNBOUNDED
        and not policy.is_recurrent
        and EPOCH.choose(*functions, optimizer.step, *training_functions(policy)) is not None
    )


class Layers:
    """Collects a network's layers, added by ``networks.NetworkFacts.add_c_layers``."""

    def __init__(self) -> None:
        self.layers: list[LayerSpec] = []

    def add(
        self, kind: str, name: str, indices: Any, shapes: dict[str, tuple[int, ...]], *sizes: int
    ) -> None:
        """Add a dense layer: indices of its tensors, its sizes and its activation.

        Args:
            kind: kind of the layer; only ``dense`` is supported.
            name: unused.
            indices: indices of the layer's tensors among all weights, by name.
            shapes: unused.
            sizes: outputs, inputs and the code of the activation.
        """
        assert kind == "dense", f"a network without recurrent state has no {kind}"
        width, inputs, activation = sizes
        self.layers.append((indices["weight"], indices.get("bias", -1), inputs, width, activation))


def describe(policy: Policy, weights: Any) -> Any:
    """Return a policy's towers and heads for the extension, with tensors as weight indices."""
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
    parts = [indices, indices["critic"]] if policy.separate_value else [indices]
    heads = [[actions], [value]] if policy.separate_value else [[actions, value]]
    logstd = decoder["logstd"] if action.continuous else -1
    return [_tower(policy, part) for part in parts], heads, logstd, list(action.sizes)


def _tower(policy: Policy, indices: Any) -> list[LayerSpec]:
    """Return the layers of the encoder and the network."""
    encoder: Any = policy.encoder
    first = indices["encoder"]
    code = CODES[encoder_facts(encoder).activation(encoder)]  # type: ignore
    layers = Layers()
    network_facts(policy.network).add_c_layers(layers, policy.network, indices["network"])  # type: ignore
    sizes = encoder.inputs, policy.network.hidden
    return [(first["weight"], first.get("bias", -1), *sizes, code), *layers.layers]


class Epochs:
    """Trains for an epoch in one operation.

    Args:
        policy: the policy to train, for which ``fits`` is True.
        train: section [train] of the configuration.
    """

    def __init__(self, policy: Policy, train: Train) -> None:
        self._policy = policy
        self._train = train
        self._network: Any = None  # built from the weights of the first call

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
        """Train on all minibatches of an epoch.

        Args:
            weights: tree of float32 arrays.
            optimizer: state of the optimizer.
            scaler: state of the loss scaler (``ppo/precision``), which counts minibatches.
            fields: the arrays of a rollout by name.
            adv: advantages, (T, N).
            order: sample indices t N + i of each minibatch, (K, M) int32.
            lr: learning rate, a scalar array.
            ent_coef: entropy coefficient, a scalar array.
            scheduled: ``Scheduled.loss``, scalar arrays.

        Returns:
            New weights, optimizer state and scaler; metrics (K, 7); and flags (K,) float32, 1 for
            each minibatch that counted, including one whose KL ended the epoch.
        """
        train = self._train
        reads = optimizers.find(train.optimizer).reads
        if self._network is None:
            self._network = describe(self._policy, weights)
        scheduled_numbers = {name: array.item() for name, array in scheduled.items()}
        coefficients = Coefficients.of(train)._replace(**scheduled_numbers)
        counts = mx.stack([scaler[name] for name in precision.COUNTS])
        moments = optimizer["momentum"], optimizer["second_moment"]
        extension: Any = cpu_extension.load()
        *new, step, metrics, ok, counts = extension.ppo_epoch(
            *(leaves(tree) for tree in (weights, *moments)),
            *(optimizer["step"], lr, ent_coef, counts),
            *(*_samples(fields, adv), order, self._network),
            (
                *(*coefficients, train.max_grad_norm),
                largest_kl(train.target_kl),
                *(getattr(train, key) for key in reads),
            ),
        )
        arrays = iter(new)
        weights, first, second = (
            tree_map(lambda _: next(arrays), tree) for tree in (weights, *moments)
        )
        state = {"momentum": first, "second_moment": second, "step": step}
        counted = dict(zip(precision.COUNTS, mx.split(counts, 4), strict=True))
        scaler = {**scaler, **{name: count.reshape(()) for name, count in counted.items()}}
        return weights, state, scaler, metrics, ok


def _samples(
    fields: dict[str, Any], adv: mx.array
) -> tuple[mx.array, list[mx.array], mx.array | None]:
    """Return the T N samples of a rollout: observations, actions and targets, masks or None."""
    T, N = adv.shape

    def flat(name: str) -> mx.array:
        return fields[name][:T].reshape(T * N, -1)

    targets = [array.reshape(T * N) for array in (fields["logprobs"], fields["values"], adv)]
    masks = None if fields["masks"] is None else flat("masks")
    return flat("observations"), [flat("actions"), *targets], masks
