"""A minibatch's gradients: the forward pass, the algorithm's loss, the backward pass."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import closed_form, custom, precision
from puffer_mlx.ppo.loss import Coefficients, Minibatch
from puffer_mlx.ppo.sections import materialize
from puffer_mlx.system.plain_functions import record


class Decoded(NamedTuple):
    """A minibatch after the forward pass: what a loss is computed from."""

    weights: Any
    """The policy's, in the precision of the pass."""
    observations: mx.array
    """(T, S, D)."""
    features: mx.array
    """(T*S, H), what the decoder read."""
    y: mx.array
    """(A + 1, T*S), the decoder's product: logits, and the value as last row."""
    actions: mx.array
    """(T*S, heads) float32."""
    masks: mx.array | None
    """(T*S, A) uint8, or None."""
    shape: tuple[int, int]
    """T and S."""

    @property
    def decoder(self) -> Any:
        """The decoder's weights."""
        return self.weights["decoder"]


class Scored(NamedTuple):
    """A loss and its statistics."""

    total: mx.array
    """Scalar, multiplied by the scale: what is differentiated. Nothing else needs a gradient."""
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
    """Return PPO's loss (``ppo/loss.py``), on a GPU by closed form.

    Its total may be part of another loss: ``_replace(total=0.5 * total + ...)``.
    """
    decoded = policy.decoder, now.decoder, now.y, now.actions, now.masks
    return Scored(*closed_form.losses(*decoded, batch, numbers, ent_coef, scale), batch.adv)


def custom_loss(
    policy: Policy,
    numbers: Coefficients,
    function: Callable[..., Any],
    name: str,
    names: list[str],
    now: Decoded,
    batch: Minibatch,
    ent_coef: mx.array,
    scale: mx.array | None,
) -> Scored:
    """Return a custom loss: see ``custom.call_loss``.

    Args:
        policy: the policy to train.
        numbers: coefficients of the loss.
        function: the custom loss.
        name: name of the function in error messages.
        names: list that is filled with the names of the statistics when the function is traced.
        now: the decoded minibatch.
        batch: targets.
        ent_coef: entropy coefficient, a scalar array.
        scale: factor on the loss, a scalar array. None for 1.
    """
    closed_form.LOSS.choose(function)  # reports that it isn't used
    outputs, value = policy.decoder.split(now.decoder, now.y)
    logprob, entropy = policy.distribution.log_prob_entropy(outputs, now.actions, now.masks)
    read = now.features, now.weights, now.observations, now.actions, now.masks, now.shape
    forward = custom.Forward(logprob, entropy, value, *read)
    total, metrics = custom.call_loss(
        function, name, forward, batch, ent_coef=ent_coef, **numbers._asdict()
    )
    names[:] = metrics
    ratio = mx.exp(logprob - batch.old_logprob)
    total = total if scale is None else total * scale
    return Scored(total, mx.stack([*metrics.values()]), ratio, value, batch.adv)


def gradients(policy: Policy, kind: str, loss: Loss) -> Callable[..., tuple]:
    """Return a function that computes the gradients of a minibatch.

    Args:
        policy: the policy to train.
        kind: ``train.precision``.
        loss: a function of the decoded minibatch, the targets, the entropy coefficient and a scale.
            The scale is None except in fp16, where it prevents underflow of small gradients.

    Returns:
        A function of float32 weights, the fields of ``Inputs``, targets, recurrent state (None for
        the initial state), entropy coefficient and scale. It returns gradients, statistics, and
        ratios, values and advantages (T, S).
    """
    scaled = kind == "fp16"

    def step(weights, observations, actions, masks, keep, compared, state, ent_coef, scale):
        observations = materialize(observations)
        T, S, _ = observations.shape
        shape = T, S

        def scored(weights):
            low = precision.lower(weights, kind)
            h, value_features, _ = policy.features(low, observations, state, keep)
            y = policy.decoder.product(low["decoder"], h, value_features)
            now = Decoded(low, observations, h, y, actions, masks, shape)
            return tuple(loss(now, compared, ent_coef, scale if scaled else None))

        (_, metrics, *samples), grads = mx.value_and_grad(scored)(weights)
        if scaled:
            grads = tree_map(lambda g: g * (1 / scale), grads)
        return grads, metrics, *(each.reshape(shape) for each in samples)

    return step


def logprobs(policy: Policy, kind: str, weights, observations, actions, masks, keep, state):
    """Return log-probabilities of actions (T, S), computed as in training."""
    low, observations = precision.lower(weights, kind), materialize(observations)
    y, _ = policy.product(low, observations, state, keep)
    flat = closed_form.logprobs(policy.decoder, low["decoder"], y, actions, masks)
    return flat.reshape(observations.shape[:2])


record(__name__)
