"""Compute PPO's loss in closed form on a GPU, log-probabilities, and moments of advantages.

The closed-form loss (``loss.metal.h``) computes its gradients in the forward pass. It takes three
launches, or two with recomputed advantages, and the backward pass needs none. The plain
implementation is in ``gradients.minibatch_loss``.

n is the number of samples, A the number of logits or of continuous action dimensions. y (A + 1, n)
is the decoder's output: logits or means, and the value in the last row.
"""

from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import THREADS, Shape, constant_array, launch, placeholder
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.policy.decoders import Decoder, Weights
from puffer_mlx.ppo.loss import METRICS, Coefficients, Forward, Targets
from puffer_mlx.system.plain_functions import record

TEXT = Path(__file__).with_name("loss.metal.h")
MAX_GROUPS = THREADS  # groups of advantages whose moments each block of `loss` combines
TERMS = 5  # sums over the samples that every action space needs: see loss.metal.h


def action_logprobs(
    decoder: Decoder, weights: Weights, y: mx.array, actions: mx.array, masks: mx.array | None
) -> mx.array:
    """Return the joint log-probabilities of actions from the decoder's output, (n,) float32."""
    outputs, _ = decoder.split(weights, y)
    return decoder.distribution.log_prob_entropy(outputs, actions, masks)[0]


def advantage_moments(adv: mx.array) -> mx.array:
    """Return count, mean and sum of squared deviations for each of G groups of the advantages.

    Args:
        adv: advantages, (n,).

    Returns:
        Moments, (3, G) float32. On a CPU, G is 1.
    """
    if (launches := MOMENTS.choose()) is not None:
        return launches(adv)
    mean = mx.mean(adv)
    count = mx.array(adv.size, mx.float32)
    squares = mx.sum(mx.square(adv - mean))
    return mx.stack([count, mean, squares]).reshape(3, 1)


# ---- on a GPU ------------------------------------------------------------------------------------


class ActionInputs(NamedTuple):
    """Decoder, actions and action masks: inputs of PPO's loss kernels that vary by action space."""

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
        moments_shape: tuple[int, int] = (0, 1),
    ) -> list[mx.array]:
        """Launch a kernel of ``loss.metal.h`` and return its outputs.

        ``y`` or zeros replace the inputs that the action space doesn't have.

        Args:
            kernel: name of the kernel.
            y: output of the decoder, (A + 1, n) float32, bfloat16 or float16.
            logstd: log standard deviations, (1, A) of the dtype of y; None for discrete actions.
            outputs: shapes of the outputs by name.
            threads: number of threads.
            inputs: additional inputs by name. A kernel gets only the inputs that it reads.
            moments_shape: numbers G of groups and R of ranks in the kernel's input ``moments``.
        """
        action = self.decoder.action
        masks = self.masks
        space = {
            "y": y,
            "logstd": y if logstd is None else logstd,
            "actions": self.actions,
            "masks": placeholder(mx.uint8) if masks is None else masks,
            "limit": constant_array(self.decoder.limits.for_kernels),
            "sizes": constant_array(*action.sizes),
            "shape": {
                "n": y.shape[1],
                "A": action.logits,
                "G": moments_shape[0],
                "R": moments_shape[1],
            },
        }
        heads = 0 if action.continuous else action.heads
        constants = {"HEADS": heads, "MASKED": int(masks is not None)}
        return launch(TEXT, kernel, {**space, **inputs}, outputs, threads, **constants)


def launch_losses(
    decoder: Decoder,
    forward: Forward,
    targets: Targets,
    coefficients: Coefficients,
    ent_coef: mx.array,
    scale: mx.array | None,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Compute PPO's loss and metrics in closed form, in two or three launches.

    Args:
        decoder: the policy's decoder.
        forward: forward pass. Only weights, decoder output, actions and masks are read.
        targets: targets with advantages.
        coefficients: coefficients of the loss.
        ent_coef: entropy coefficient, a scalar array.
        scale: factor on the loss, a scalar array. None for 1.

    Returns:
        The loss multiplied by the scale; metrics (7,) without the scale; ratios of the new to the
        old probability of the actions (n,); and values (n,). Gradients flow only through the loss.
    """
    space = ActionInputs(decoder, forward.actions, forward.masks)
    logstd = decoder.logstd(forward.weights["decoder"])
    settings = {
        "settings": settings_of(coefficients),
        "ent_coef": ent_coef.reshape(1),
        "scale": constant_array(1.0) if scale is None else scale.reshape(1),
    }

    @mx.custom_function
    def fused(y: mx.array, logstd: mx.array | None) -> tuple[mx.array, ...]:
        return launch_loss_kernels(space, y, logstd, targets, settings)

    @fused.vjp
    def backward(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, mx.array | None]:
        # The forward pass computed the gradients. Multiplying them by 1 would take another launch.
        slope = cotangents[0]
        gradients = outputs[4:]
        if not _is_one(slope):
            gradients = [(each * slope).astype(each.dtype) for each in gradients]
        return gradients[0], None if logstd is None else gradients[1]

    results: Any = fused(forward.y, logstd)
    total, metrics, ratio, value = results[:4]
    stop = mx.stop_gradient
    return total, stop(metrics), stop(ratio), stop(value)


def launch_loss_kernels(
    space: ActionInputs,
    y: mx.array,
    logstd: mx.array | None,
    targets: Targets,
    settings: dict[str, mx.array],
) -> tuple[mx.array, ...]:
    """Launch the kernels of PPO's loss and its gradients with respect to the decoder's output.

    Args:
        space: inputs that depend on the action space.
        y: output of the decoder, (A + 1, n).
        logstd: log standard deviations, (1, A). None for discrete actions.
        targets: targets with advantages.
        settings: coefficients of the loss, by the names of the kernels' inputs.

    Returns:
        The results of ``launch_losses``, and the gradients with respect to ``y`` and ``logstd``.
    """
    n = y.shape[1]
    blocks = _blocks(n)
    adv = targets.adv
    moments = targets.moments
    if moments is None and targets.weight is not None:
        moments = launch_moments(adv)
    if moments is None:
        sizes = 0, 1
    else:
        sizes = moments.shape[-1], moments.size // (3 * moments.shape[-1])
    inputs = {
        **settings,
        "old_logprob": targets.old_logprob,
        "old_value": targets.old_value,
        "adv": adv,
        "weight": adv if targets.weight is None else targets.weight,
        "moments": adv if moments is None else moments,
    }
    sums = TERMS + (1 if logstd is None else logstd.size)
    shapes = {"dy": y.shape, "ratio": (n,), "value": (n,), "partial": (sums, blocks)}
    threads = blocks * THREADS
    dy, ratio, value, partial = space.launch("loss", y, logstd, shapes, threads, inputs, sizes)
    by_logstd = (1,) if logstd is None else logstd.shape
    shapes = {"total": (1,), "metrics": (len(METRICS),), "dlogstd": by_logstd}
    inputs = {**settings, "partial": partial}
    total, metrics, dlogstd = space.launch("finish_loss", y, logstd, shapes, THREADS, inputs)
    return total.reshape(()), metrics, ratio, value, dy, dlogstd


def settings_of(coefficients: Coefficients) -> dict[str, Any]:
    """Return the loss's coefficients under the kernels' names: floats or scalar arrays."""
    clip, vf_coef, vf_clip = coefficients
    bounds = {"ratio_low": 1 - clip, "ratio_high": 1 + clip}
    return {**bounds, "clip": clip, "vf_clip": vf_clip, "vf_coef": vf_coef}


def _is_one(scalar: mx.array) -> bool:
    """Return True if a scalar array is 1. False if its value isn't known while compiling."""
    try:
        return scalar.item() == 1
    except ValueError:  # The value depends on arguments of a compiled function.
        return False


def launch_moments(adv: mx.array) -> mx.array:
    """Return count, mean and squared deviations of groups of advantages, from one GPU launch."""
    groups = min(MAX_GROUPS, _blocks(adv.size))
    inputs = {"adv": adv, "shape": {"n": adv.size, "G": groups}}
    shapes = {"moments": (3, groups)}
    return launch(TEXT, "advantage_moments", inputs, shapes, groups * THREADS)[0]


def _blocks(n: int) -> int:
    """Return the number of thread blocks for n samples, one sample per thread."""
    return -(-n // THREADS)


PLAIN = ("ppo.closed_form",)
LOSS = Implementation(PLAIN, "the loss by closed form", gpu=launch_losses)
MOMENTS = Implementation(PLAIN, "the loss by closed form", gpu=launch_moments)

record(__name__)
