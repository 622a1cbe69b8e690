"""PPO of a small policy on a CPU: all minibatches of an epoch in one operation of the extension.

Control tasks of Gymnasium need many small minibatches: 160 of 64 samples for every 512 steps of one
environment. An MLX graph takes a millisecond for each, and the arithmetic about 20 microseconds.

The operation supports policies without recurrent state that consist of products and activations, in
fp32, and optimizers that are implemented in C. Its results are those of ``ppo/update.py``.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Train
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.ops.linear import CODES
from puffer_mlx.policy.decoders import Fused, Separate
from puffer_mlx.policy.distributions import UNBOUNDED
from puffer_mlx.policy.encoders.catalog import forms_of as encoder_forms
from puffer_mlx.policy.networks.catalog import forms_of
from puffer_mlx.policy.policy import Policy, training_of
from puffer_mlx.ppo import optimizers
from puffer_mlx.ppo.loss import Coefficients, largest_kl
from puffer_mlx.trees import leaves

EPOCH = implementation(
    ("ppo.gradients", "ppo.sections", "ppo.precision", "ppo.update"),
    "the epoch in one operation of ppo/small_networks",
    cpu="ppo_epoch",
    gemm=True,
)
LARGEST = 1 << 18  # size of a layer's output; MLX uses more cores for larger ones

Five = tuple[int, int, int, int, int]


def fits(policy: Policy, train: Train, *given: Callable[..., Any]) -> bool:
    """Return True if an epoch can be one operation.

    Args:
        policy: the policy to train.
        train: section [train] of the configuration.
        *given: custom functions, e.g. a loss.
    """
    known = (
        encoder_forms(policy.encoder).activation is not None
        and forms_of(policy.network).add_c_layers is not None
        and type(policy.decoder) in (Fused, Separate)
        and policy.decoder.limits == UNBOUNDED
    )
    ours = None if ":" in train.optimizer else optimizers.find(train.optimizer)
    small = train.minibatch_size * policy.network.hidden <= LARGEST
    possible = (
        known
        and (ours is None or ours.in_small_networks)
        and train.precision == "fp32"
        and small
        and not policy.has_memory
    )
    steps = [] if ours is None else [ours.step]
    return (
        possible
        and EPOCH.choose(*given, *steps, *training_of(policy)) is not None
        and ours is not None
    )


class Layers:
    """Collects a network's layers, added by ``networks.Forms.add_c_layers``."""

    def __init__(self) -> None:
        self.layers: list[Five] = []

    def add(
        self, kind: str, name: str, own: Any, shapes: dict[str, tuple[int, ...]], *numbers: int
    ) -> None:
        """Add a dense layer: indices of its tensors, its sizes and its activation.

        Args:
            kind: kind of the layer; only ``dense`` is supported.
            name: unused.
            own: indices of the layer's tensors among all weights, by name.
            shapes: unused.
            numbers: outputs, inputs and the code of the activation.
        """
        assert kind == "dense", f"a network without memory has no {kind}"
        width, inputs, activation = numbers
        self.layers.append((own["weight"], own.get("bias", -1), inputs, width, activation))


def describe(policy: Policy, weights: Any) -> Any:
    """Return a policy's towers and heads for the extension, with tensors as weight indices."""
    counter = iter(range(len(leaves(weights))))
    places = tree_map(lambda _: next(counter), weights)
    own = [places, places["critic"]] if policy.separate_value else [places]
    decoder, A = places["decoder"], policy.decoder.action.logits
    if type(policy.decoder) is Fused:
        actions, value = (decoder["weight"], -1, 0, A, 0), (decoder["weight"], -1, A, 1, A)
    else:
        both = decoder["actions"], decoder["value"]
        (w, b), (v, c) = ((head["weight"], head["bias"]) for head in both)
        actions, value = (w, b, 0, A, 0), (v, c, 0, 1, A)
    heads = [[actions], [value]] if policy.separate_value else [[actions, value]]
    action = policy.decoder.action
    logstd = decoder["logstd"] if action.continuous else -1
    return [_tower(policy, one) for one in own], heads, logstd, list(action.sizes)


def _tower(policy: Policy, places: Any) -> list[Five]:
    """Return the layers of the encoder and the network."""
    encoder, first = policy.encoder, places["encoder"]
    code = CODES[encoder_forms(encoder).activation(encoder)]  # type: ignore
    sizes = encoder.inputs, policy.network.hidden  # type: ignore
    layers = Layers()
    forms_of(policy.network).add_c_layers(layers, policy.network, places["network"])  # type: ignore
    return [(first["weight"], first.get("bias", -1), *sizes, code), *layers.layers]


class Epochs:
    """Trains for an epoch in one operation.

    Args:
        policy: the policy to train, for which ``fits`` is True.
        train: section [train] of the configuration.
    """

    def __init__(self, policy: Policy, train: Train) -> None:
        self._policy, self._train = policy, train
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

        Returns:
            New weights, optimizer state and scaler; statistics (K, 7); and flags (K,) float32, 1
            for each minibatch that counted, including one whose KL ended the epoch.
        """
        train = self._train
        reads = optimizers.find(train.optimizer).reads
        if self._network is None:
            self._network = describe(self._policy, weights)
        names = "good", "skipped", "in_a_row", "longest"
        counts = mx.stack([scaler[name] for name in names])
        moments = optimizer["momentum"], optimizer["second_moment"]
        extension: Any = cpu_extension.load()
        *new, step, metrics, ok, counts = extension.ppo_epoch(
            *(leaves(tree) for tree in (weights, *moments)),
            *(optimizer["step"], lr, ent_coef, counts),
            *(*_samples(fields, adv), order, self._network),
            (
                *(*Coefficients.of(train), train.max_grad_norm),
                largest_kl(train.target_kl),
                *(getattr(train, key) for key in reads),
            ),
        )
        arrays = iter(new)
        weights, first, second = (
            tree_map(lambda _: next(arrays), tree) for tree in (weights, *moments)
        )
        state = {"momentum": first, "second_moment": second, "step": step}
        counted = dict(zip(names, mx.split(counts, 4), strict=True))
        scaler = {**scaler, **{name: count.reshape(()) for name, count in counted.items()}}
        return weights, state, scaler, metrics, ok


def _samples(
    fields: dict[str, Any], adv: mx.array
) -> tuple[mx.array, list[mx.array], mx.array | None]:
    """Return the T N samples of a rollout: observations, actions and targets, masks or None."""
    T, N = adv.shape
    whole = T * N

    def flat(name: str) -> mx.array:
        return fields[name][:T].reshape(whole, -1)

    compared = (array.reshape(whole) for array in (fields["logprobs"], fields["values"], adv))
    masks = None if fields["masks"] is None else flat("masks")
    return flat("observations"), [flat("actions"), *compared], masks
