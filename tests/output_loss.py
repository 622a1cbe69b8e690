"""The loss of a decoder's output, by ``minibatch_loss`` without a network."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx

from puffer_mlx.policy.decoders import Fused
from puffer_mlx.ppo import gradients
from puffer_mlx.ppo.loss import Coefficients, Targets
from puffer_mlx.ppo.sections import Minibatch


class GivenOutput(Fused):
    """Decoder whose output (A + 1, n) is the weight ``y``, whatever the features are."""

    def product(self, weights: Any, h: Any, value_features: Any = None) -> mx.array:
        """Return the weight ``y`` as the decoder's output."""
        return weights["y"]


def output_loss(
    decoder: Fused,
    weights: dict[str, mx.array],
    actions: mx.array,
    masks: mx.array | None,
    targets: Targets,
    coefficients: Coefficients,
    ent_coef: mx.array,
    scale: mx.array | None = None,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Compute the minibatch loss from a decoder's given output.

    Returns the loss, its metrics, and ratios and values (n,) of n samples.

    Args:
        decoder: Decoder with the action space and limits.
        weights: the output ``y`` (A + 1, n), and ``logstd`` for continuous actions.
        actions: (n, heads) float32.
        masks: (n, A) uint8, or None.
        targets: targets with advantages.
        coefficients: coefficients of the loss.
        ent_coef: entropy coefficient, a scalar array.
        scale: factor on the loss, a scalar array. None for 1.
    """
    given: Any = GivenOutput(**vars(decoder))
    policy: Any = SimpleNamespace(
        decoder=given, distribution=given.distribution, features=lambda *_: (None, None, None)
    )
    minibatch = Minibatch(mx.zeros((1, len(actions), 1)), actions, masks, targets=targets)
    unchanged = SimpleNamespace(cast_weights=lambda weights, _: weights)
    with mock.patch.object(gradients, "precision", unchanged):
        total, metrics, ratio, value, _ = gradients.minibatch_loss(
            *(policy, "fp32" if scale is None else "fp16", coefficients, None, None),
            *({"decoder": weights}, minibatch, ent_coef, mx.array(1.0) if scale is None else scale),
        )
    return total, metrics, ratio.reshape(-1), value.reshape(-1)
