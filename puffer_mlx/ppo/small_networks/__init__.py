"""PPO of a small policy on a CPU: all of an epoch's minibatches in one operation of the extension.

Control on Gymnasium wants many small minibatches: 160 of 64 samples for every 512 steps of one
environment. As a graph each costs a millisecond, for some 20 microseconds of arithmetic.

It is for policies without memory that are products and activations throughout, in fp32, with an
optimizer that has a form here. It computes what the steps of ``ppo/update.py`` do, one minibatch
after the other.
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
LARGEST = 1 << 18  # numbers of a layer's output: beyond, MLX's graph uses more cores

Five = tuple[int, int, int, int, int]


def fits(policy: Policy, train: Train, *given: Callable[..., Any]) -> bool:
    """Whether an epoch of a policy can be one operation here.

    Args:
        policy: what is trained.
        train: section [train].
        *given: functions of the user's own, in the place of ours.
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
    """Collects the layers that a network adds: ``networks.Forms.add_c_layers``'s step."""

    def __init__(self) -> None:
        self.layers: list[Five] = []

    def add(
        self, kind: str, name: str, own: Any, shapes: dict[str, tuple[int, ...]], *numbers: int
    ) -> None:
        """A product with bias: its tensors' places, its sizes and its activation."""
        assert kind == "dense", f"a network without memory has no {kind}"
        width, inputs, activation = numbers
        self.layers.append((own["weight"], own.get("bias", -1), inputs, width, activation))


def describe(policy: Policy, weights: Any) -> Any:
    """A policy's towers and heads for the extension; tensors are numbers of weights."""
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
    """Encoder and network."""
    encoder, first = policy.encoder, places["encoder"]
    code = CODES[encoder_forms(encoder).activation(encoder)]  # type: ignore
    sizes = encoder.inputs, policy.network.hidden  # type: ignore
    layers = Layers()
    forms_of(policy.network).add_c_layers(layers, policy.network, places["network"])  # type: ignore
    return [(first["weight"], first.get("bias", -1), *sizes, code), *layers.layers]


class Epochs:
    """A run's epochs, each of which is one operation.

    Args:
        policy: what acts; these are for one that ``fits``.
        train: numbers of the loss and of the optimizer.
    """

    def __init__(self, policy: Policy, train: Train) -> None:
        self._policy, self._train = policy, train
        self._network: Any = None  # described by the first weights

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
        """All minibatches of a rollout.

        Args:
            weights: tree of float32 arrays.
            optimizer: its state.
            scaler: of ``ppo/precision``, which counts minibatches.
            fields: a rollout's.
            adv: (T, N).
            order: (K, M) int32, the samples t N + i of each minibatch.
            lr: learning rate, a scalar array.
            ent_coef: entropy coefficient, a scalar array.

        Returns:
            New weights, optimizer's state and scaler; statistics (K, 7); which minibatches
            counted, (K,) float32, the one among them whose KL ended the epoch.
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
    """A rollout's T N samples: observations; what is compared; masks, if there are any."""
    T, N = adv.shape
    whole = T * N

    def flat(name: str) -> mx.array:
        return fields[name][:T].reshape(whole, -1)

    compared = (array.reshape(whole) for array in (fields["logprobs"], fields["values"], adv))
    masks = None if fields["masks"] is None else flat("masks")
    return flat("observations"), [flat("actions"), *compared], masks
