"""The loss by closed form on a GPU: ``loss.metal.h``, in three launches, of live advantages two.

Log-probabilities take one.

n samples, A logits (or dimensions of a continuous space). y (A + 1, n) is a decoder's product:
logits or means, and the value in the last row.
"""

from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import THREADS, Shape, launch, nothing, numbers
from puffer_mlx.ppo.loss import METRICS, Coefficients, Minibatch
from puffer_mlx.spec import ActionSpec

TEXT = Path(__file__).with_name("loss.metal.h")
PARTS = THREADS  # at most, of the advantages: each block of the second launch adds them up
TERMS = 5  # sums over the samples that every action space has: see terms.metal.h


class Space(NamedTuple):
    """An action space, and which of its actions were taken."""

    action: ActionSpec
    limit: float
    """Means of a continuous space count as at most this far from 0; 0: as they are."""
    logstd: mx.array | None
    """(1, A) of y's dtype, of a continuous space; else None."""
    actions: mx.array
    """(n, heads) float32."""
    masks: mx.array | None
    """(n, A) uint8, non-zero where legal, or None."""

    def inputs(self, y: mx.array) -> dict[str, mx.array]:
        """What its kernels read of it; what it hasn't got isn't read, and is y, or one number."""
        return {
            "y": y,
            "logstd": y if self.logstd is None else self.logstd,
            "actions": self.actions,
            "masks": nothing(mx.uint8) if self.masks is None else self.masks,
            "limit": numbers(self.limit),
            "sizes": numbers(*self.action.sizes),
        }

    def constants(self) -> dict[str, int]:
        """Of its kernels' template."""
        heads = 0 if self.action.continuous else self.action.heads
        return {"HEADS": heads, "MASKED": int(self.masks is not None)}


class Settings(NamedTuple):
    """Numbers of the loss; the last two are arrays of one number, float32."""

    coefficients: Coefficients
    ent_coef: mx.array
    scale: mx.array
    """What the loss is multiplied by."""

    def inputs(self) -> dict[str, mx.array]:
        """As kernels read them."""
        clip, vf, vf_clip = map(float, self.coefficients)
        return {
            "settings": numbers(1 - clip, 1 + clip, clip, vf, vf_clip),
            "ent_coef": self.ent_coef.reshape(1),
            "scale": self.scale.reshape(1),
        }


class Samples(NamedTuple):
    """What is known of each sample; the gradient is that of the scaled loss."""

    dy: mx.array
    """(A + 1, n), of y's dtype."""
    ratio: mx.array
    """New over old probability of each action (n,) float32."""
    value: mx.array
    """(n,) float32."""
    partial: mx.array
    """For ``finish``: sums over the samples of each block, a row for each sum."""


class Finished(NamedTuple):
    """What is known of all samples together."""

    total: mx.array
    """(1,) float32: scale times the loss."""
    metrics: mx.array
    """(7,) float32, in the order of ``METRICS``, not scaled."""
    dlogstd: mx.array | None = None
    """(1, A) of logstd's dtype: gradient of the scaled loss; None of a discrete space."""


def moments(adv: mx.array) -> mx.array:
    """Of each of G parts of adv (n,): count, mean, sum of squares about it: (3, G) float32."""
    parts = min(PARTS, _blocks(adv.size))
    inputs = {"adv": adv, "shape": numbers(adv.size, parts)}
    shapes = {"moments": (3, parts)}
    return launch(TEXT, "advantage_moments", inputs, shapes, parts * THREADS)[0]


def samples(
    space: Space, settings: Settings, y: mx.array, batch: Minibatch, parts: mx.array | None
) -> Samples:
    """The one pass over all samples.

    Args:
        space: with the actions.
        settings: of the loss.
        y: (A + 1, n) float32, bfloat16 or float16.
        batch: targets (n,).
        parts: ``moments`` of the advantages, or those of each of R minibatches of n samples that
            they are normalised together with, (R, 3, G); None of live ones, which have no weight
            either.
    """
    (rows, n), A = y.shape, space.action.logits
    G, R = (0, 1) if parts is None else (parts.shape[-1], parts.size // (3 * parts.shape[-1]))
    inputs = {
        "shape": numbers(n, A, G, R),
        **space.inputs(y),
        **settings.inputs(),
        **batch._asdict(),
        "moments": batch.adv if parts is None else parts,
        "weight": batch.adv if batch.weight is None else batch.weight,
    }
    sums = TERMS + (A if space.action.continuous else 1)
    shapes = {"dy": (rows, n), "ratio": (n,), "value": (n,), "partial": (sums, _blocks(n))}
    return Samples(*launch(TEXT, "loss", inputs, shapes, _blocks(n) * THREADS, **space.constants()))


def finish(space: Space, settings: Settings, n: int, partial: mx.array) -> Finished:
    """The sums over all samples, of ``samples``' partial ones."""
    logstd, A = space.logstd, space.action.logits
    inputs = {"partial": partial, "shape": numbers(n, A), **settings.inputs()}
    inputs["logstd"] = partial if logstd is None else logstd
    shapes: dict[str, Shape] = {"total": (1,), "metrics": (len(METRICS),)}
    shapes["dlogstd"] = (1,) if logstd is None else logstd.shape
    heads = space.constants()["HEADS"]
    total, metrics, slope = launch(TEXT, "finish_loss", inputs, shapes, THREADS, HEADS=heads)
    return Finished(total, metrics, None if logstd is None else slope)


def logprobs(space: Space, y: mx.array) -> mx.array:
    """Joint log-probabilities (n,) float32 of the actions, by y (A + 1, n)."""
    n = y.shape[1]
    inputs = {"shape": numbers(n, space.action.logits), **space.inputs(y)}
    return launch(TEXT, "logprobs", inputs, {"logprobs": (n,)}, n, **space.constants())[0]


def _blocks(n: int) -> int:
    return -(-n // THREADS)
