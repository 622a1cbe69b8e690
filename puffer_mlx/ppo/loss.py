"""PPO's loss with clipped ratios and values, in two variants, and its inputs.

PufferLib 4.0's loss uses advantages computed before the minibatch, normalises them, and weights
them by segment. 5.0's loss uses advantages recomputed from the values of the same forward pass,
without normalisation or weights.
"""

import math
from typing import Any, NamedTuple, Self

import mlx.core as mx

from puffer_mlx.system.plain_functions import record

METRICS = ("policy", "value", "entropy", "total", "old_kl", "kl", "clipfrac")
KL_TOLERANCE = 1.5  # factor on the target KL, as in Stable-Baselines3's PPO


class Forward(NamedTuple):
    """Forward pass of a minibatch, the first argument of a custom loss.

    A minibatch has T steps of S segments. With ``ppo`` and a network without recurrent state it has
    one step of S samples. Gradients flow through the first five fields and through ``y``.
    """

    logprob: mx.array
    """Log-probabilities of the actions, (T*S,) float32, time-major."""
    entropy: mx.array
    """Entropies of the policy, (T*S,) float32."""
    value: mx.array
    """Values, (T*S,) float32."""
    features: mx.array
    """Inputs of the decoder, (T*S, H), in the precision of the pass."""
    weights: Any
    """The policy's tree of weights, in the precision of the pass."""
    observations: mx.array
    """Observations as the policy receives them, (T, S, D)."""
    actions: mx.array
    """Actions, (T*S, heads) float32."""
    masks: mx.array | None
    """Action masks, (T*S, A) uint8, or None."""
    shape: tuple[int, int]
    """Number of steps T and of segments S."""
    y: mx.array
    """Output of the decoder, (A + 1, T*S): logits or means, and the value in the last row."""


class Targets(NamedTuple):
    """Targets of a minibatch's loss, float32. Arrays (T*S,) are time-major."""

    old_logprob: mx.array
    """Log-probabilities of the actions, recorded when acting, (T*S,)."""
    old_value: mx.array
    """Values before training on the minibatch, (T*S,)."""
    adv: Any = None
    """Advantages, (T*S,), not normalised. None until the loss has recomputed them."""
    weight: mx.array | None = None
    """Importance weights of the segments, (T*S,). None for recomputed advantages."""
    moments: mx.array | None = None
    """Moments of the advantages on all R ranks, (R, 3, G), from ``closed_form.advantage_moments``.
    Advantages are then normalised by the mean and standard deviation over all ranks."""
    rewards: mx.array | None = None
    """Rewards, (T, S), if advantages are recomputed."""
    terminals: mx.array | None = None
    """1 where an episode terminated, else 0, (T, S), if advantages are recomputed."""
    final_observations: mx.array | None = None
    """Marks of episodes' final observations, (T, S), as in the rollout; or None."""


class Coefficients(NamedTuple):
    """Coefficients of the loss: floats, or scalar arrays if they have a schedule."""

    clip_coef: Any
    """Clip range of the ratio."""
    vf_coef: Any
    """Weight of the value loss."""
    vf_clip_coef: Any
    """Clip range of the change of the value."""

    @classmethod
    def of(cls, train: Any) -> Self:
        """Return the loss's coefficients from section [train]."""
        return cls(*(getattr(train, name) for name in cls._fields))


def largest_kl(target: float) -> float:
    """Return the KL above which an epoch ends early: 1.5 times the target, infinite if that is 0.

    The KL is the metric ``kl``, the mean of ratio - 1 - log ratio. It estimates KL(rollout's
    policy, current policy) from the rollout's actions (Schulman, "Approximating KL divergence").
    """
    return KL_TOLERANCE * target if target else math.inf


def normalise_advantages(adv: mx.array, moments: mx.array | None = None) -> mx.array:
    """Return normalised advantages, (adv - mean) / (std + 1e-8), over all entries.

    This includes the zeros of last steps. The variance is unbiased. A single advantage has no
    variance and is returned unchanged.

    Args:
        adv: advantages.
        moments: ``Targets.moments`` of all ranks, combined by Chan's parallel variance algorithm.
            None to normalise by this minibatch alone.
    """
    if moments is not None and moments.ndim == 2:  # (3, G) from a kernel, moments of ``adv`` alone
        moments = None
    if adv.size * (1 if moments is None else len(moments)) == 1:
        return adv
    if moments is None:
        return (adv - mx.mean(adv)) / (mx.sqrt(mx.var(adv, ddof=1)) + 1e-8)
    count, mean, squares = mx.split(moments, 3, axis=1)
    total = moments.shape[0] * adv.size
    whole = mx.sum(count * mean) / total
    variance = (mx.sum(squares) + mx.sum(count * mx.square(mean - whole))) / (total - 1)
    return (adv - whole) / (mx.sqrt(variance) + 1e-8)


def ppo_loss(
    logprob: mx.array,
    entropy: mx.array,
    value: mx.array,
    targets: Targets,
    *,
    ent_coef: mx.array,
    clip_coef: float | mx.array,
    vf_coef: float | mx.array,
    vf_clip_coef: float | mx.array,
) -> tuple[mx.array, mx.array]:
    """Return PPO's loss: mean(pg) + vf_coef * mean(vl) - ent_coef * mean(entropy).

    "w adv" is the weight times the normalised advantage, and ret is old_value + adv. If the targets
    have no weight (recomputed advantages), "w adv" is adv and ret is value + adv.

        ratio = exp(logprob - old_logprob)
        pg = max(-w adv ratio, -w adv clip(ratio, 1 - clip_coef, 1 + clip_coef))
        vl = 0.5 max((value - ret)^2, (old_value + clip(value - old_value, ±vf_clip_coef) - ret)^2)

    Args:
        logprob: log-probabilities of the actions, (T*S,).
        entropy: entropies of the policy, (T*S,).
        value: values, (T*S,).
        targets: targets with advantages.
        ent_coef: entropy coefficient, a scalar array so that annealing doesn't recompile.
        clip_coef: clip range of the ratio.
        vf_coef: weight of the value loss.
        vf_clip_coef: clip range of the value's change.

    Returns:
        The scalar loss, and the metrics (7,) in the order of ``METRICS``. ``old_kl`` is
        mean(-logratio), ``kl`` is mean(ratio - 1 - logratio), and ``clipfrac`` is the fraction of
        ratios that differ from 1 by more than clip_coef.
    """
    shapes = [a.shape for a in (logprob, entropy, value, *targets[:4]) if a is not None]
    if len(set(shapes)) != 1:
        raise ValueError(f"the loss's inputs differ in shape: {shapes}")
    logratio = logprob - targets.old_logprob
    ratio = mx.exp(logratio)
    if targets.weight is None:
        gain = -targets.adv
        ret = mx.stop_gradient(value) + targets.adv
    else:
        gain = -targets.weight * normalise_advantages(targets.adv, targets.moments)
        ret = targets.old_value + targets.adv
    # For equal arguments, MLX's maximum passes the gradient to the second one. Here this is the
    # unclipped term, as upstream.
    pg = mx.mean(mx.maximum(gain * mx.clip(ratio, 1 - clip_coef, 1 + clip_coef), gain * ratio))

    clipped = targets.old_value + mx.clip(value - targets.old_value, -vf_clip_coef, vf_clip_coef)
    error = mx.maximum(mx.square(clipped - ret), mx.square(value - ret))
    vl = 0.5 * mx.mean(error)

    ent = mx.mean(entropy)
    loss = pg + vf_coef * vl - ent_coef * ent
    outside = mx.mean((mx.abs(ratio - 1) > clip_coef).astype(mx.float32))
    metrics = [pg, vl, ent, loss, mx.mean(-logratio), mx.mean(ratio - 1 - logratio), outside]
    return loss, mx.stop_gradient(mx.stack(metrics))


def normalized_loss(
    forward: Forward, targets: Targets, *, ent_coef: mx.array, **coefficients: Any
) -> tuple[mx.array, mx.array]:
    """Return PPO's loss with recomputed advantages that are normalised for the policy loss only.

    The value loss uses the returns value + advantage, without normalisation.

    Args:
        forward: forward pass of the minibatch.
        targets: targets without a weight.
        ent_coef: entropy coefficient, a scalar array.
        coefficients: the other coefficients of ``ppo_loss``.
    """
    entropy = forward.entropy
    value = forward.value
    logprob = mx.stop_gradient(forward.logprob)  # no gradient of the policy's term here
    rest, metrics = ppo_loss(logprob, entropy, value, targets, ent_coef=ent_coef, **coefficients)
    weighted = targets._replace(weight=mx.ones_like(targets.adv))
    coefficients = {**coefficients, "vf_coef": 0.0}
    zero = mx.array(0.0)
    pg, _ = ppo_loss(forward.logprob, entropy, value, weighted, ent_coef=zero, **coefficients)
    total = rest - metrics[0] + pg
    changed = mx.stop_gradient(mx.stack([pg, total]))
    return total, mx.concatenate([changed[:1], metrics[1:3], changed[1:], metrics[4:]])


record(__name__)
