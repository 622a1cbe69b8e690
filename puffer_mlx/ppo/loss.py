"""The PPO loss with clipped values, in two variants.

The loss of PufferLib 4.0 uses advantages computed before the minibatch, normalised and weighted by
segment. The loss of 5.0 uses *live* advantages, computed from the values of the same forward pass,
without normalisation or weights.

| symbol | shape | meaning |
| --- | --- | --- |
| logprob, entropy, value | (T*S,) | of the current policy on the minibatch |
| old_logprob | (T*S,) | of the rollout's policy, constant during an epoch |
| old_value | (T*S,) | the most recently refreshed values; live: the rollout's |
| ret | (T*S,) | old_value + advantage; live: value + advantage |
| adv | (T*S,) | not normalised |
| weight | (T*S,) | importance weight of the segment; live: None |
"""

import math
from typing import Any, NamedTuple, Self

import mlx.core as mx

from puffer_mlx.system.plain_functions import record

METRICS = ("policy", "value", "entropy", "total", "old_kl", "kl", "clipfrac")
TOLERANCE = 1.5  # factor on the target KL, as in Stable-Baselines3's PPO


class Minibatch(NamedTuple):
    """Targets of a minibatch, all (T*S,) float32, time-major. Live advantages have no weight.

    If the minibatch is one of R equal shards of a larger one, ``moments`` (R, 3, G) contains the
    results of ``closed_form.moments`` for all shards. Advantages are then normalised by the mean
    and standard deviation of the larger minibatch. If ``moments`` is None, they are normalised by
    their own.
    """

    old_logprob: mx.array
    old_value: mx.array
    adv: mx.array
    weight: mx.array | None = None
    moments: mx.array | None = None


class Coefficients(NamedTuple):
    """Coefficients of the loss that are constant during a run."""

    clip_coef: float
    """Clip range of the ratio."""
    vf_coef: float
    """Weight of the value loss."""
    vf_clip_coef: float
    """Clip range of the value's change."""

    @classmethod
    def of(cls, train: Any) -> Self:
        """Return the coefficients of a [train] section, which uses the same names."""
        return cls(*(getattr(train, name) for name in cls._fields))


def largest_kl(target: float) -> float:
    """Return the largest KL with which an epoch continues; infinite if ``target`` is 0.

    The KL is the metric ``kl``, the mean of ratio - 1 - log ratio. It estimates KL(rollout's
    policy, current policy) from the rollout's actions (Schulman, "Approximating KL divergence").
    """
    return TOLERANCE * target if target else math.inf


def normalise(adv: mx.array, moments: mx.array | None = None) -> mx.array:
    """Return (adv - mean) / (std + 1e-8) over all entries, including the zeros of last steps.

    The variance is unbiased. A single advantage has no variance and is returned unchanged.

    Args:
        adv: advantages.
        moments: moments of the shards of a larger minibatch (``Minibatch``), combined by Chan's
            parallel variance algorithm; or None.
    """
    if moments is not None and moments.ndim == 2:  # (3, G) from a kernel, of ``adv`` alone
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
    batch: Minibatch,
    *,
    ent_coef: mx.array,
    clip_coef: float,
    vf_coef: float,
    vf_clip_coef: float,
) -> tuple[mx.array, mx.array]:
    """Return upstream's loss: mean(pg) + vf_coef * mean(vl) - ent_coef * mean(entropy).

    "w adv" is the weight times the normalised advantage, or adv for live advantages.

        ratio = exp(logprob - old_logprob)
        pg = max(-w adv ratio, -w adv clip(ratio, 1 - clip_coef, 1 + clip_coef))
        vl = 0.5 max((value - ret)^2, (old_value + clip(value - old_value, ±vf_clip_coef) - ret)^2)

    Args:
        logprob: log-probabilities of the actions, (T*S,).
        entropy: entropies of the policy, (T*S,).
        value: values, (T*S,).
        batch: targets.
        ent_coef: entropy coefficient, a scalar array so that annealing doesn't recompile.
        clip_coef: clip range of the ratio.
        vf_coef: weight of the value loss.
        vf_clip_coef: clip range of the value's change.

    Returns:
        The scalar loss and the statistics (7,) in the order of ``METRICS``. ``old_kl`` is
        mean(-logratio), ``kl`` is mean(ratio - 1 - logratio), and ``clipfrac`` is the fraction of
        ratios that differ from 1 by more than clip_coef.

    Raises:
        ValueError: the shapes of the arguments differ.
    """
    shapes = [a.shape for a in (logprob, entropy, value, *batch[:4]) if a is not None]
    if len(set(shapes)) != 1:
        raise ValueError(f"the loss's inputs differ in shape: {shapes}")
    logratio = logprob - batch.old_logprob
    ratio = mx.exp(logratio)
    if batch.weight is None:
        gain, known = -batch.adv, mx.stop_gradient(value)
    else:
        gain, known = -batch.weight * normalise(batch.adv, batch.moments), batch.old_value
    # For equal arguments, the gradient of MLX's maximum goes to the second one. So it goes to the
    # unclipped term, as upstream.
    pg = mx.mean(mx.maximum(gain * mx.clip(ratio, 1 - clip_coef, 1 + clip_coef), gain * ratio))

    ret = known + batch.adv
    moved = mx.clip(value - batch.old_value, -vf_clip_coef, vf_clip_coef)
    error = mx.maximum(mx.square(batch.old_value + moved - ret), mx.square(value - ret))
    vl = 0.5 * mx.mean(error)

    ent = mx.mean(entropy)
    loss = pg + vf_coef * vl - ent_coef * ent
    outside = mx.mean((mx.abs(ratio - 1) > clip_coef).astype(mx.float32))
    metrics = [pg, vl, ent, loss, mx.mean(-logratio), mx.mean(ratio - 1 - logratio), outside]
    return loss, mx.stop_gradient(mx.stack(metrics))


def normalized_loss(
    now: Any, batch: Minibatch, *, ent_coef: mx.array, **numbers: float
) -> tuple[mx.array, mx.array]:
    """Return ``ppo_loss`` of live advantages, normalised in the policy's term only.

    The value loss uses the returns value + advantage, without normalisation.

    Args:
        now: forward pass, a ``custom.Forward``.
        batch: targets without a weight.
        ent_coef: entropy coefficient, a scalar array.
        numbers: other coefficients of ``ppo_loss``.
    """
    held = mx.stop_gradient(now.logprob)  # no gradient of the policy's term here
    rest, metrics = ppo_loss(held, now.entropy, now.value, batch, ent_coef=ent_coef, **numbers)
    weighted, none = batch._replace(weight=mx.ones_like(batch.adv)), mx.array(0.0)
    numbers = {**numbers, "vf_coef": 0.0}
    pg, _ = ppo_loss(now.logprob, now.entropy, now.value, weighted, ent_coef=none, **numbers)
    total = rest - metrics[0] + pg
    own = mx.stop_gradient(mx.stack([pg, total]))
    return total, mx.concatenate([own[:1], metrics[1:3], own[1:], metrics[4:]])


record(__name__)
