"""Compute a minibatch's loss, which ``ppo/update.py`` differentiates, and log-probabilities."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from puffer_mlx.ops import take_rows
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import closed_form, precision
from puffer_mlx.ppo.loss import Coefficients, Forward, Targets, ppo_loss
from puffer_mlx.ppo.sections import Minibatch
from puffer_mlx.system.plain_functions import record

LossFunction = Callable[..., tuple[mx.array, mx.array]]
RecomputeAdvantages = Callable[[Forward, Targets], mx.array]


def minibatch_loss(
    policy: Policy,
    precision_name: str,
    coefficients: Coefficients,
    loss: LossFunction | None,
    recompute: RecomputeAdvantages | None,
    weights: Any,
    minibatch: Minibatch,
    ent_coef: mx.array,
    scale: mx.array,
    scheduled: Mapping[str, mx.array] = {},
) -> tuple[mx.array, mx.array, mx.array, mx.array, mx.array]:
    """Return a minibatch's loss, metrics, ratios, values and advantages.

    ``ppo/update.py`` computes this function's gradients with respect to the weights.

    Args:
        policy: the policy to train.
        precision_name: ``train.precision``: ``fp32``, ``bf16`` or ``fp16``.
        coefficients: coefficients of the loss. A compiled function contains them as constants.
        loss: the algorithm's loss: see ``Algorithm``. None for ``ppo_loss``.
        recompute: computes advantages from the forward pass. None to use ``Targets.adv``.
        weights: the policy's weights, float32.
        minibatch: inputs of the forward pass, and targets.
        ent_coef: entropy coefficient, a scalar array.
        scale: factor on the loss in fp16, a scalar array. It prevents underflow of small gradients.
        scheduled: coefficients with a schedule, scalar arrays by name. They replace the constants.

    Returns:
        A tuple of the loss, multiplied by ``scale`` in fp16; the metrics, without this factor; the
        ratios of the actions' new to old probabilities, (T, S); the values, (T, S); and the
        advantages, (T, S).
    """
    coefficients = coefficients._replace(**scheduled)
    forward = forward_pass(policy, precision_name, weights, minibatch)
    targets = minibatch.targets
    if recompute is not None:
        targets = targets._replace(adv=recompute(forward, targets))
    factor = scale if precision_name == "fp16" else None
    fused = None
    if loss is None:
        # The fused loss also replaces these two methods, unless a custom policy overrides them.
        replaced = policy.decoder.split, policy.distribution.log_prob_entropy
        fused = closed_form.LOSS.choose(*replaced)
    if fused is not None:
        total, metrics, ratio, value = fused(
            policy.decoder, forward, targets, coefficients, ent_coef, factor
        )
    else:
        logprob = forward.logprob
        value = forward.value
        by_name: dict[str, Any] = {"ent_coef": ent_coef, **coefficients._asdict()}
        if loss is None:
            total, metrics = ppo_loss(logprob, forward.entropy, value, targets, **by_name)
        else:
            total, metrics = loss(forward, targets, **by_name)
        total = total if factor is None else total * factor
        ratio = mx.exp(logprob - targets.old_logprob)
    shape = forward.shape
    return total, metrics, ratio.reshape(shape), value.reshape(shape), targets.adv.reshape(shape)


def forward_pass(
    policy: Policy, precision_name: str, weights: Any, minibatch: Minibatch
) -> Forward:
    """Return the forward pass of a minibatch.

    MLX computes only the fields that are used. The closed-form loss uses only the decoder's output,
    ``Forward.y``.

    Args:
        policy: the policy to train.
        precision_name: ``train.precision``.
        weights: the policy's weights, float32.
        minibatch: inputs of the forward pass.
    """
    weights = precision.cast_weights(weights, precision_name)
    observations = selected_observations(minibatch)
    T, S, _ = observations.shape
    features, value_features, _ = policy.features(
        weights, observations, minibatch.state, minibatch.not_done
    )
    y = policy.decoder.product(weights["decoder"], features, value_features)
    outputs, value = policy.decoder.split(weights["decoder"], y)
    actions = minibatch.actions
    masks = minibatch.masks
    logprob, entropy = policy.distribution.log_prob_entropy(outputs, actions, masks)
    return Forward(
        logprob=logprob,
        entropy=entropy,
        value=value,
        features=features,
        weights=weights,
        observations=observations,
        actions=actions,
        masks=masks,
        shape=(T, S),
        y=y,
    )


def minibatch_logprobs(
    policy: Policy, precision_name: str, weights: Any, minibatch: Minibatch
) -> mx.array:
    """Return the log-probabilities of a minibatch's actions, (T, S).

    They are rounded in the same way as in the training's forward pass.

    Args:
        policy: the policy to train.
        precision_name: ``train.precision``.
        weights: the policy's weights, float32.
        minibatch: inputs of the forward pass.
    """
    weights = precision.cast_weights(weights, precision_name)
    observations = selected_observations(minibatch)
    y, _ = policy.product(weights, observations, minibatch.state, minibatch.not_done)
    flat = closed_form.action_logprobs(
        policy.decoder, weights["decoder"], y, minibatch.actions, minibatch.masks
    )
    return flat.reshape(observations.shape[:2])


def selected_observations(minibatch: Minibatch) -> mx.array:
    """Return the observations of a minibatch's S agents, (T, S, D).

    If the minibatch only refers to these agents among all (``Minibatch.view``), they are copied.
    """
    observations = minibatch.observations
    if minibatch.view is None:
        return observations
    return take_rows(observations, minibatch.view, len(observations))


record(__name__)
