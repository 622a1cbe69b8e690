"""A minibatch's gradients: a forward pass, an algorithm's loss of it, and back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.closed_form import operation as closed_form
from puffer_mlx.ppo.loss import Coefficients, Minibatch


class Decoded(NamedTuple):
    """A minibatch after the forward pass: what a loss is computed from."""

    decoder: Any
    """The decoder's weights, in the precision of the pass."""
    y: mx.array
    """(A + 1, T*S), the decoder's product: logits, and the value as last row."""
    actions: mx.array
    """(T*S, heads) float32."""
    masks: mx.array | None
    """(T*S, A) uint8, or None."""
    shape: tuple[int, int]
    """T and S."""


class Scored(NamedTuple):
    """A loss, and what it is known by."""

    total: mx.array
    """Scalar, multiplied by the scale: what is differentiated."""
    metrics: mx.array
    """(7,), or as many as the algorithm has names for; not scaled."""
    ratio: mx.array
    """(T*S,), new over old probability of each action; likewise the next two."""
    value: mx.array
    adv: mx.array


Loss = Callable[[Decoded, Any, mx.array, mx.array | None], Scored]


def clipped_loss(
    policy: Policy,
    numbers: Coefficients,
    now: Decoded,
    batch: Minibatch,
    ent_coef: mx.array,
    scale: mx.array | None,
) -> Scored:
    """PPO's loss, by closed form where there is one: ``ppo/loss.py``."""
    decoded = policy.decoder, now.decoder, now.y, now.actions, now.masks
    return Scored(*closed_form.losses(*decoded, batch, numbers, ent_coef, scale), batch.adv)


def gradients(policy: Policy, kind: str, loss: Loss) -> Callable[..., tuple]:
    """What gives a minibatch's gradients.

    Args:
        policy: whose weights they are by.
        kind: ``train.precision``.
        loss: of the decoded minibatch, of what it is compared with, with the weight of the entropy
            bonus and, in fp16 alone, what the loss is multiplied by so that small gradients don't
            vanish.

    Returns:
        A function of float32 weights, ``Inputs``, what is compared, the network's first state
        (None: its initial one), weight of the entropy bonus and scale. It returns gradients, the
        loss's statistics, and its ratios, values and advantages (T, S).
    """
    scaled = kind == "fp16"

    def step(weights, observations, actions, masks, keep, compared, state, ent_coef, scale):
        shape = observations.shape[:2]

        def scored(weights):
            low, y = _forward(policy, kind, weights, observations, keep, state)
            now = Decoded(low, y, actions, masks, shape)
            return tuple(loss(now, compared, ent_coef, scale if scaled else None))

        (_, metrics, *samples), grads = mx.value_and_grad(scored)(weights)
        if scaled:
            grads = tree_map(lambda g: g * (1 / scale), grads)
        return grads, metrics, *(each.reshape(shape) for each in samples)

    return step


def logprobs(policy: Policy, kind: str, weights, observations, actions, masks, keep, state):
    """Log-probabilities (T, S) of actions as training computes them."""
    low, y = _forward(policy, kind, weights, observations, keep, state)
    found = closed_form.logprobs(policy.decoder, low, y, actions, masks)
    return found.reshape(observations.shape[:2])


def _forward(policy: Policy, kind: str, weights, observations, keep, state):
    """The decoder's weights in the precision of the pass, and its product (A + 1, T*S)."""
    low = precision.lower(weights, kind)
    y, _ = policy.product(low, observations, state, keep)
    return low["decoder"], y
