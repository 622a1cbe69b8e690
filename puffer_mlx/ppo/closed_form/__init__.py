"""The loss of a decoder's product: on a GPU by closed form, else by the plain form.

The plain form is ``ppo/loss.py`` of the log-probabilities of ``policy/distributions.py``, and MLX
differentiates it. By closed form (``loss.metal.h``) the gradients come with the loss, in the same
pass over the samples: three launches, of live advantages two, and going back launches nothing.

n samples, A logits (or dimensions of a continuous space). y (A + 1, n) is a decoder's product:
logits or means, and the value in the last row.
"""

from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import THREADS, Shape, launch, nothing, numbers
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.policy.decoders import Decoder, Weights
from puffer_mlx.ppo import loss
from puffer_mlx.ppo.loss import METRICS, Coefficients, Minibatch
from puffer_mlx.system.plain_functions import record

TEXT = Path(__file__).with_name("loss.metal.h")
PARTS = THREADS  # at most, of the advantages: each block of the second launch adds them up
TERMS = 5  # sums over the samples that every action space has: see terms.metal.h


class Losses(NamedTuple):
    """What a minibatch of n samples gives."""

    total: mx.array
    """Scalar, multiplied by the scale. Nothing else carries a gradient, on any device."""
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
    """Return PPO's loss of n samples.

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
    distribution = decoder.distribution
    fused = LOSS.choose(decoder.split, distribution.log_prob_entropy)
    if fused is not None:
        return fused(decoder, weights, y, actions, masks, batch, coefficients, ent_coef, scale)
    outputs, value = decoder.split(weights, y)
    logprob, entropy = distribution.log_prob_entropy(outputs, actions, masks)
    total, metrics = loss.ppo_loss(
        logprob, entropy, value, batch, ent_coef=ent_coef, **coefficients._asdict()
    )
    others = metrics, mx.exp(logprob - batch.old_logprob), value
    return Losses(total if scale is None else total * scale, *map(mx.stop_gradient, others))


def logprobs(
    decoder: Decoder, weights: Weights, y: mx.array, actions: mx.array, masks: mx.array | None
) -> mx.array:
    """Joint log-probabilities (n,) float32 of actions; arguments as ``losses``, no gradient."""
    distribution = decoder.distribution
    fused = LOGPROBS.choose(decoder.split, distribution.log_prob_entropy)
    if fused is not None:
        return fused(decoder, weights, y, actions, masks)
    outputs, _ = decoder.split(weights, y)
    return distribution.log_prob_entropy(outputs, actions, masks)[0]


def moments(adv: mx.array) -> mx.array:
    """Of each of G parts of advantages (n,): count, mean, sum of squares about it: (3, G) float32.

    On a CPU all of them are one part.
    """
    if (launches := MOMENTS.choose()) is not None:
        return launches(adv)
    mean = mx.mean(adv)
    count, squares = mx.array(adv.size, mx.float32), mx.sum(mx.square(adv - mean))
    return mx.stack([count, mean, squares]).reshape(3, 1)


# ---- on a GPU ------------------------------------------------------------------------------------


class Space(NamedTuple):
    """An action space as kernels read it, and which of its actions were taken."""

    decoder: Decoder
    actions: mx.array
    masks: mx.array | None

    def launch(
        self,
        kernel: str,
        y: mx.array,
        logstd: mx.array | None,
        outputs: dict[str, Shape],
        threads: int,
        inputs: dict[str, mx.array],
        shape: tuple[int, ...] = (),
    ) -> list[mx.array]:
        """A kernel's outputs. In place of what a space hasn't got are y, or zeros.

        Args:
            kernel: its name.
            y: (A + 1, n) float32, bfloat16 or float16.
            logstd: (1, A) of y's dtype, of a continuous space; else None.
            outputs: their shapes.
            threads: how many there are.
            inputs: further ones; a kernel gets those that it reads.
            shape: what follows n and A in the kernel's ``shape``.
        """
        action, masks = self.decoder.action, self.masks
        space = {
            "y": y,
            "logstd": y if logstd is None else logstd,
            "actions": self.actions,
            "masks": nothing(mx.uint8) if masks is None else masks,
            "limit": numbers(self.decoder.limits.for_kernels),
            "sizes": numbers(*action.sizes),
            "shape": numbers(y.shape[1], action.logits, *shape),
        }
        heads = 0 if action.continuous else action.heads
        constants = {"HEADS": heads, "MASKED": int(masks is not None)}
        return launch(TEXT, kernel, {**space, **inputs}, outputs, threads, **constants)


def launch_losses(
    decoder: Decoder,
    weights: Weights,
    y: mx.array,
    actions: mx.array,
    masks: mx.array | None,
    batch: Minibatch,
    coefficients: Coefficients,
    ent_coef: mx.array,
    scale: mx.array | None,
) -> Losses:
    """``losses``: one pass over all samples, and one over its blocks' sums."""
    space, logstd = Space(decoder, actions, masks), decoder.logstd(weights)
    n, blocks = y.shape[1], _blocks(y.shape[1])
    clip, vf, vf_clip = map(float, coefficients)
    settings = {
        "settings": numbers(1 - clip, 1 + clip, clip, vf, vf_clip),
        "ent_coef": ent_coef.reshape(1),
        "scale": numbers(1.0) if scale is None else scale.reshape(1),
    }
    live = batch.weight is None
    targets = {
        name: batch.adv if array is None else array for name, array in batch._asdict().items()
    }

    @mx.custom_function
    def fused(y: mx.array, logstd: mx.array | None) -> tuple[mx.array, ...]:
        parts = launch_moments(batch.adv) if batch.moments is None and not live else batch.moments
        sizes = (0, 1) if parts is None else (parts.shape[-1], parts.size // (3 * parts.shape[-1]))
        inputs = {**settings, **targets, "moments": batch.adv if parts is None else parts}
        sums = TERMS + (1 if logstd is None else logstd.size)
        shapes = {"dy": y.shape, "ratio": (n,), "value": (n,), "partial": (sums, blocks)}
        dy, ratio, value, partial = space.launch(
            "loss", y, logstd, shapes, blocks * THREADS, inputs, sizes
        )
        by_logstd = (1,) if logstd is None else logstd.shape
        shapes = {"total": (1,), "metrics": (len(METRICS),), "dlogstd": by_logstd}
        inputs = {**settings, "partial": partial}
        total, metrics, dlogstd = space.launch("finish_loss", y, logstd, shapes, THREADS, inputs)
        return total.reshape(()), metrics, ratio, value, dy, dlogstd

    @fused.vjp
    def backward(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, mx.array | None]:
        # The gradients came with the loss. If the loss is differentiated as it is, they aren't
        # multiplied, which would be a launch over all samples.
        slope, gradients = cotangents[0], outputs[4:]
        if not _is_one(slope):
            gradients = [(each * slope).astype(each.dtype) for each in gradients]
        return gradients[0], None if logstd is None else gradients[1]

    results: Any = fused(y, logstd)
    total, *others = results[:4]
    return Losses(total, *map(mx.stop_gradient, others))


def _is_one(scalar: mx.array) -> bool:
    """Return True if a scalar is known to be 1 while the graph is built."""
    try:
        return scalar.item() == 1
    except ValueError:  # it depends on the arguments of a function that MLX compiles
        return False


def launch_logprobs(
    decoder: Decoder, weights: Weights, y: mx.array, actions: mx.array, masks: mx.array | None
) -> mx.array:
    """See ``logprobs``."""
    space, logstd, n = Space(decoder, actions, masks), decoder.logstd(weights), y.shape[1]
    return space.launch("logprobs", y, logstd, {"logprobs": (n,)}, n, {})[0]


def launch_moments(adv: mx.array) -> mx.array:
    """See ``moments``."""
    parts = min(PARTS, _blocks(adv.size))
    inputs, shapes = {"adv": adv, "shape": numbers(adv.size, parts)}, {"moments": (3, parts)}
    return launch(TEXT, "advantage_moments", inputs, shapes, parts * THREADS)[0]


def _blocks(n: int) -> int:
    return -(-n // THREADS)


PLAIN = ("ppo.closed_form",)
LOSS = implementation(PLAIN, "the loss by closed form", gpu=launch_losses)
LOGPROBS = implementation(PLAIN, "the kernel of log-probabilities", gpu=launch_logprobs)
MOMENTS = implementation(PLAIN, "the loss by closed form", gpu=launch_moments)

record(__name__)
