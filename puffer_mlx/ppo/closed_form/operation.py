"""The loss of a decoder's product: on a GPU by closed form, else by the plain form.

The plain form is ``ppo/loss.py`` of the log-probabilities of ``policy/distributions.py``, and MLX
differentiates it. By closed form the gradients come with the loss, in the same pass over the
samples: going back through it launches nothing.
"""

from typing import NamedTuple

import mlx.core as mx

from puffer_mlx.ops.choice import kernel_on_gpu
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.ops.gpu.launch import numbers
from puffer_mlx.policy.decoders import Decoder, Weights
from puffer_mlx.ppo import loss
from puffer_mlx.ppo.closed_form import gpu
from puffer_mlx.ppo.loss import Coefficients, Minibatch

LOSS = Reference(
    "the loss by closed form",
    ("ppo.closed_form.operation:losses",),
    test="tests/ppo/test_closed_form.py",
    cost="a GPU gets several times as many launches for a minibatch's loss",
)
LOGPROBS = Reference(
    "the kernel of log-probabilities",
    ("ppo.closed_form.operation:logprobs",),
    test="tests/ppo/test_closed_form.py",
    cost="a GPU gets more launches",
)


class Losses(NamedTuple):
    """What a minibatch of n samples gives."""

    total: mx.array
    """Scalar, multiplied by the scale: what is differentiated."""
    metrics: mx.array
    """(7,) in the order of ``METRICS``, not scaled."""
    ratio: mx.array
    """New over old probability of each action (n,)."""
    value: mx.array
    """(n,)."""


def losses(
    decoder: Decoder,
    weights: Weights,
    y: mx.array,
    actions: mx.array,
    masks: mx.array | None,
    batch: Minibatch,
    coefficients: Coefficients,
    ent_coef: mx.array,
    scale: mx.array | None = None,
) -> Losses:
    """PPO's loss of n samples.

    On a GPU ``total`` is for ``mx.value_and_grad`` alone, which must differentiate it as it is: the
    gradients that come with it are its own, and not of a function of it. Nothing else of the result
    has a gradient there.

    Args:
        decoder: whose product ``y`` is.
        weights: the decoder's.
        y: (A + 1, n), of the weights' dtype.
        actions: (n, heads) float32.
        masks: (n, A) uint8, non-zero where legal, or None.
        batch: the targets.
        coefficients: of the loss.
        ent_coef: scalar array.
        scale: scalar array, what the loss is multiplied by; None is 1.
    """
    fused = kernel_on_gpu(_fused, LOSS, decoder.split, decoder.distribution.log_prob_entropy)
    if fused is None:
        return _plain(decoder, weights, y, actions, masks, batch, coefficients, ent_coef, scale)
    space = decoder.action, decoder.limits.for_kernels, decoder.logstd(weights), actions, masks
    settings = coefficients, ent_coef, numbers(1.0) if scale is None else scale
    total, metrics, ratio, value, *_ = fused(y, *space, *settings, *batch)
    return Losses(total.reshape(()), metrics, ratio, value)


def moments(adv: mx.array) -> mx.array:
    """Of each of G parts of advantages (n,): count, mean, sum of squares about it: (3, G) float32.

    On a CPU all of them are one part.
    """
    if (launch := kernel_on_gpu(gpu.moments, LOSS)) is not None:
        return launch(adv)
    mean = mx.mean(adv)
    count, squares = mx.array(adv.size, mx.float32), mx.sum(mx.square(adv - mean))
    return mx.stack([count, mean, squares]).reshape(3, 1)


def logprobs(
    decoder: Decoder, weights: Weights, y: mx.array, actions: mx.array, masks: mx.array | None
) -> mx.array:
    """Joint log-probabilities (n,) float32 of actions; arguments as ``losses``, no gradient."""
    fused = kernel_on_gpu(
        gpu.logprobs, LOGPROBS, decoder.split, decoder.distribution.log_prob_entropy
    )
    if fused is None:
        outputs, _ = decoder.split(weights, y)
        return decoder.distribution.log_prob_entropy(outputs, actions, masks)[0]
    limit, logstd = decoder.limits.for_kernels, decoder.logstd(weights)
    return fused(gpu.Space(decoder.action, limit, logstd, actions, masks), y)


def _plain(decoder, weights, y, actions, masks, batch, coefficients, ent_coef, scale) -> Losses:
    """``losses`` in plain MLX, which differentiates it."""
    outputs, value = decoder.split(weights, y)
    logprob, entropy = decoder.distribution.log_prob_entropy(outputs, actions, masks)
    total, metrics = loss.ppo_loss(
        logprob, entropy, value, batch, ent_coef=ent_coef, **coefficients._asdict()
    )
    ratio = mx.exp(logprob - batch.old_logprob)
    return Losses(total if scale is None else total * scale, metrics, ratio, value)


# Arrays, and what MLX passes on as it is: an action space, coefficients, None.
@mx.custom_function
def _fused(y, action, limit, logstd, actions, masks, coefficients, ent_coef, scale, *batch):
    space = gpu.Space(action, limit, logstd, actions, masks)
    settings = gpu.Settings(Coefficients(*coefficients), ent_coef, scale)
    targets = Minibatch(*batch)
    parts = targets.moments
    if parts is None and targets.weight is not None:
        parts = gpu.moments(targets.adv)
    dy, ratio, value, partial = gpu.samples(space, settings, y, targets, parts)
    total, metrics, *dlogstd = gpu.finish(space, settings, y.shape[1], partial)
    return total, metrics, ratio, value, dy, *(() if logstd is None else dlogstd)


@_fused.vjp
def _fused_vjp(primals, _, found):
    # The loss is what is differentiated: its cotangent is 1, the others' are 0. What isn't
    # differentiated is given zeros, which nobody evaluates.
    dy, *dlogstd = found[4:]
    rest = (mx.zeros_like(a) if isinstance(a, mx.array) else None for a in primals[4:])
    return dy, None, None, dlogstd[0] if dlogstd else None, *rest
