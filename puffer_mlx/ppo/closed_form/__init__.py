"""The loss of a decoder's output: in closed form on a GPU, otherwise by the plain implementation.

The plain implementation applies ``ppo/loss.py`` to the log-probabilities of
``policy/distributions.py``, and MLX differentiates it. The closed form (``loss.metal.h``) computes
the gradients together with the loss. It takes three launches (two with live advantages), and the
backward pass launches nothing.

n is the number of samples, A the number of logits or of continuous action dimensions. y (A + 1, n)
is the output of a decoder: logits or means, and the value in the last row.
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
PARTS = THREADS  # largest number of parts of the advantages; each block of `loss` adds them up
TERMS = 5  # number of sums over the samples in every action space: see loss.metal.h


class Losses(NamedTuple):
    """Loss and statistics of a minibatch of n samples."""

    total: mx.array
    """Loss multiplied by the scale, a scalar. Gradients flow only through this field."""
    metrics: mx.array
    """Statistics without the scale, (7,) in the order of ``METRICS``."""
    ratio: mx.array
    """Ratios of the new to the old probability of the actions, (n,)."""
    value: mx.array
    """Values, (n,)."""


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
        decoder: the decoder that computed ``y``.
        weights: weights of the decoder.
        y: output of the decoder, (A + 1, n), with the dtype of the weights.
        actions: actions, (n, heads) float32.
        masks: action masks, (n, A) uint8, non-zero for legal actions; or None.
        batch: targets.
        coefficients: coefficients of the loss.
        ent_coef: entropy coefficient, a scalar array.
        scale: factor on the loss, a scalar array. None for 1.
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
    """Return joint log-probabilities of actions, (n,) float32, without gradients."""
    distribution = decoder.distribution
    fused = LOGPROBS.choose(decoder.split, distribution.log_prob_entropy)
    if fused is not None:
        return fused(decoder, weights, y, actions, masks)
    outputs, _ = decoder.split(weights, y)
    return distribution.log_prob_entropy(outputs, actions, masks)[0]


def moments(adv: mx.array) -> mx.array:
    """Return count, mean and sum of squared deviations of G parts of the advantages.

    Args:
        adv: advantages, (n,).

    Returns:
        Moments, (3, G) float32. On a CPU, G is 1.
    """
    if (launches := MOMENTS.choose()) is not None:
        return launches(adv)
    mean = mx.mean(adv)
    count, squares = mx.array(adv.size, mx.float32), mx.sum(mx.square(adv - mean))
    return mx.stack([count, mean, squares]).reshape(3, 1)


# ---- on a GPU ------------------------------------------------------------------------------------


class Space(NamedTuple):
    """Inputs of the kernels that depend on the action space, with the actions taken."""

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
        inputs: dict[str, Any],
        parts: tuple[int, int] = (0, 1),
    ) -> list[mx.array]:
        """Launch a kernel and return its outputs.

        Inputs that the action space lacks are replaced by ``y`` or by zeros.

        Args:
            kernel: name of the kernel.
            y: output of the decoder, (A + 1, n) float32, bfloat16 or float16.
            logstd: log standard deviations, (1, A) of the dtype of y; None for discrete actions.
            outputs: shapes of the outputs by name.
            threads: number of threads.
            inputs: additional inputs by name. A kernel gets only the inputs that it reads.
            parts: G and R, of the kernel's input ``moments``.
        """
        action, masks = self.decoder.action, self.masks
        space = {
            "y": y,
            "logstd": y if logstd is None else logstd,
            "actions": self.actions,
            "masks": nothing(mx.uint8) if masks is None else masks,
            "limit": numbers(self.decoder.limits.for_kernels),
            "sizes": numbers(*action.sizes),
            "shape": {"n": y.shape[1], "A": action.logits, "G": parts[0], "R": parts[1]},
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
    """Compute ``losses`` by a pass over all samples and a pass over the sums of the blocks."""
    space, logstd = Space(decoder, actions, masks), decoder.logstd(weights)
    n, blocks = y.shape[1], _blocks(y.shape[1])
    settings = {
        "settings": settings_of(coefficients),
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
        # The forward pass computed the gradients. Don't multiply them by 1: that would take a
        # launch over all samples.
        slope, gradients = cotangents[0], outputs[4:]
        if not _is_one(slope):
            gradients = [(each * slope).astype(each.dtype) for each in gradients]
        return gradients[0], None if logstd is None else gradients[1]

    results: Any = fused(y, logstd)
    total, *others = results[:4]
    return Losses(total, *map(mx.stop_gradient, others))


def settings_of(coefficients: Coefficients) -> dict[str, float]:
    """Return the values of the kernels' input ``settings``."""
    clip, vf_coef, vf_clip = map(float, coefficients)
    bounds = {"ratio_low": 1 - clip, "ratio_high": 1 + clip}
    return {**bounds, "clip": clip, "vf_clip": vf_clip, "vf_coef": vf_coef}


def _is_one(scalar: mx.array) -> bool:
    """Return True if a scalar is known to be 1 while the graph is built."""
    try:
        return scalar.item() == 1
    except ValueError:  # the scalar depends on arguments of a compiled function
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
    inputs, shapes = {"adv": adv, "shape": {"n": adv.size, "G": parts}}, {"moments": (3, parts)}
    return launch(TEXT, "advantage_moments", inputs, shapes, parts * THREADS)[0]


def _blocks(n: int) -> int:
    return -(-n // THREADS)


PLAIN = ("ppo.closed_form",)
LOSS = implementation(PLAIN, "the loss by closed form", gpu=launch_losses)
LOGPROBS = implementation(PLAIN, "the kernel of log-probabilities", gpu=launch_logprobs)
MOMENTS = implementation(PLAIN, "the loss by closed form", gpu=launch_moments)

record(__name__)
