"""The loss of a minibatch and its gradients: one forward pass, compared with the rollout's.

| ``train.algorithm`` | compared with | advantages | beside gradients and statistics |
| --- | --- | --- | --- |
| ``puffer4`` | ``Minibatch`` | given | new ratios and values, to be written back |
| ``puffer5`` | ``Segments`` | of the values of this pass | new ratios, advantages |
| ``ppo`` | ``Minibatch`` | given | new ratios, advantages |
"""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Train
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import precision
from puffer_mlx.ppo.advantage import configured_advantages
from puffer_mlx.ppo.closed_form import operation as closed_form
from puffer_mlx.ppo.loss import Coefficients, Minibatch
from puffer_mlx.ppo.sections import Segments


class Gradients:
    """What is learned from a minibatch of T steps of S rows.

    Args:
        policy: whose weights they are.
        train: section [train].
    """

    def __init__(self, policy: Policy, train: Train) -> None:
        self._policy, self._train = policy, train
        self._coefficients = Coefficients(train.clip_coef, train.vf_coef, train.vf_clip_coef)
        self._scaled = train.precision == "fp16"
        self._advantages = configured_advantages(train)

    def gradients(
        self, weights, observations, actions, masks, keep, compared, state, ent_coef, scale
    ):
        """Those of the loss by all weights.

        Args:
            weights: float32, a tree.
            observations: as the next three see ``Inputs``.
            actions: (T*S, heads).
            masks: (T*S, A), or None.
            keep: (T, S), or None.
            compared: see the table.
            state: the network's, with which the rows' rollout began; None: its initial one.
            ent_coef: weight of the entropy bonus.
            scale: what the loss is multiplied by in fp16, so that small gradients don't vanish.

        Returns:
            Gradients, statistics (``METRICS``), and what the table says, (T, S) each.
        """

        def loss(weights):
            low, y = self._forward(weights, observations, keep, state)
            batch = compared
            if self._train.algorithm == "puffer5":
                batch = self._live(low, y, actions, masks, compared, observations.shape[:2])
            settings = self._coefficients, ent_coef, scale if self._scaled else None
            decoder = self._policy.decoder
            made = closed_form.losses(decoder, low, y, actions, masks, batch, *settings)
            return *made, batch.adv

        (_, metrics, *samples), grads = mx.value_and_grad(loss)(weights)
        if self._scaled:
            grads = tree_map(lambda g: g * (1 / scale), grads)
        ratio, value, adv = samples  # (T*S,)
        told = value if self._train.algorithm == "puffer4" else adv
        shape = observations.shape[:2]
        return grads, metrics, ratio.reshape(shape), told.reshape(shape)

    def logprobs(self, weights, observations, actions, masks, keep, state):
        """Log-probabilities (T, S) of actions as training computes them."""
        low, y = self._forward(weights, observations, keep, state)
        found = closed_form.logprobs(self._policy.decoder, low, y, actions, masks)
        return found.reshape(observations.shape[:2])

    def _forward(self, weights, observations, keep, state):
        """The decoder's weights in the precision of the pass, and its product (A + 1, T*S)."""
        low = precision.lower(weights, self._train.precision)
        y, _ = self._policy.product(low, observations, state, keep)
        return low["decoder"], y

    def _live(self, low: Any, y, actions, masks, segments: Segments, shape) -> Minibatch:
        """Targets of the values that this pass gives; no gradient flows through them."""
        fixed, now = tree_map(mx.stop_gradient, low), mx.stop_gradient(y)
        values, ratios = now[-1:].reshape(shape), None
        if self._train.vtrace:
            logprobs = closed_form.logprobs(self._policy.decoder, fixed, now, actions, masks)
            ratios = mx.exp(logprobs - segments.old_logprob).reshape(shape)
        old_logprob, old_value, rewards, terminals, finals = segments
        adv = self._advantages(values, rewards, terminals, ratios, finals=finals)
        return Minibatch(old_logprob, old_value, adv.reshape(-1))
