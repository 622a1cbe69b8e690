"""Action distributions: sampling, log-probabilities and entropies of a decoder's outputs.

``noise(key, shape)`` returns the random numbers (*shape, heads) that ``sample`` needs. ``sample``
returns actions (n, heads) float32 and their joint log-probabilities (n,); without noise it returns
the most probable actions. Masks are (n, A) uint8, non-zero where legal.

Arrays are *action-first*: logits are (A, n). On MLX's CPU backend, reductions over the first axis
are several times faster than over a short last axis; on a GPU they are no slower.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import mlx.core as mx

from puffer_mlx.spec import ActionSpec
from puffer_mlx.system.plain_functions import record

MASKED_LOGIT = -1e4  # of an illegal action, as in PufferLib (its probability underflows to 0)
MAX_FLOAT = 3.4028e38  # replaces infinity
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class ActionBounds(NamedTuple):
    """Bounds of continuous actions, and of the parameters of their normal distribution."""

    action: float = math.inf
    """Largest absolute value of means and actions."""
    lowest: float = -math.inf
    """Lower bound of log standard deviations."""
    highest: float = math.inf
    """Upper bound of log standard deviations."""

    @property
    def for_kernels(self) -> float:
        """The largest |action| of continuous actions, as GPU kernels take it; 0 means unbounded."""
        return self.action if math.isfinite(self.action) else 0.0


UNBOUNDED = ActionBounds()


@mx.custom_function
def _clamp(x: mx.array, lowest: float, highest: float) -> mx.array:
    return mx.clip(mx.where(mx.isnan(x), 0, x), lowest, highest)


@_clamp.vjp
def _clamp_vjp(primals, cotangent, _):
    return cotangent, None, None


def clamp(x: mx.array, lowest: float, highest: float) -> mx.array:
    """Clamp an array to bounds and replace NaN by 0; gradients pass unchanged, as in PufferLib."""
    return x if math.isinf(highest) else _clamp(x, lowest, highest)  # type: ignore


def log_softmax(logits: mx.array) -> mx.array:
    """Return log-softmax over the first axis: logits (A, n) -> log-probabilities (A, n)."""
    top = mx.stop_gradient(mx.max(logits, axis=0, keepdims=True))
    return logits - (top + mx.log(mx.sum(mx.exp(logits - top), axis=0, keepdims=True)))


@dataclass(frozen=True)
class Categorical:
    """Distribution of discrete actions with independent heads.

    A decoder's outputs are the logits of all heads, (A, n).
    """

    action: ActionSpec

    def noise(self, key: mx.array, shape: tuple[int, ...]) -> mx.array:
        """Return random numbers to sample discrete actions: uniform in (0, 1], (*shape, heads)."""
        return 1 - mx.random.uniform(shape=(*shape, self.action.heads), key=key)

    def sample(
        self, outputs: mx.array, noise: mx.array | None, mask: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Sample discrete actions by inverting the cumulative distribution.

        As in PufferLib, NaN logits count as 0 and infinite ones as ±3.4e38. If rounding leaves no
        cumulative probability above the random number, the result is the last legal action.
        """
        logits = mx.nan_to_num(outputs, nan=0.0, posinf=MAX_FLOAT, neginf=-MAX_FLOAT)
        actions = []
        logprob = mx.zeros(logits.shape[1])
        for head, (logp, legal) in enumerate(self._heads(logits, mask)):
            if noise is None:
                action = mx.argmax(logp, axis=0)
            else:
                action = _invert(logp, noise[:, head], legal)
            actions.append(action.astype(mx.float32))
            logprob = logprob + _pick(logp, action)
        return mx.stack(actions, axis=-1), logprob

    def log_prob_entropy(
        self, outputs: mx.array, actions: mx.array, mask: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Return the log-probabilities (n,) of discrete actions (n, heads), and entropies (n,)."""
        logprob = mx.zeros(outputs.shape[1])
        entropy = mx.zeros(outputs.shape[1])
        for head, (logp, _) in enumerate(self._heads(outputs, mask)):
            logprob = logprob + _pick(logp, actions[:, head])
            entropy = entropy - mx.sum(mx.exp(logp) * logp, axis=0)
        return logprob, entropy

    def _heads(self, logits: mx.array, mask: mx.array | None):
        """Yield each action head's log-probabilities (size, n) and legal choices or None."""
        stops = list(accumulate(self.action.sizes))
        for start, stop in zip([0, *stops], stops, strict=False):
            head = logits[start:stop]
            legal = None
            if mask is not None:
                legal = mask[:, start:stop].T != 0
                head = mx.where(legal, head, MASKED_LOGIT)
            yield log_softmax(head), legal


def _invert(logp: mx.array, uniform: mx.array, legal: mx.array | None) -> mx.array:
    """Sample one head's choices (n,) from log-probabilities (size, n) and uniform numbers (n,).

    The choice is the first one whose cumulative probability exceeds the uniform number.
    """
    size = logp.shape[0]
    choices = mx.arange(size)[:, None]
    last = size - 1 if legal is None else mx.max(mx.where(legal, choices, 0), axis=0)
    below = mx.cumsum(mx.exp(logp), axis=0) <= uniform
    return mx.minimum(mx.sum(below, axis=0), last)


def _pick(logp: mx.array, action: mx.array) -> mx.array:
    """Return the log-probability (n,) of each sample's chosen action, from those of all (size, n).

    Uses a sum, which can be fused, unlike a gather.
    """
    chosen = mx.arange(logp.shape[0])[:, None] == action[None]
    return mx.sum(mx.where(chosen, logp, 0), axis=0)


@dataclass(frozen=True)
class Gaussian:
    """Independent normal distributions of continuous actions.

    A decoder's outputs are means (a, n) and log standard deviations (a, 1), which don't depend on
    the observation. As in PufferLib, actions aren't squashed, only clipped to ``limits``;
    environments also clip them. Masks are unsupported.
    """

    action: ActionSpec
    limits: ActionBounds = UNBOUNDED

    def noise(self, key: mx.array, shape: tuple[int, ...]) -> mx.array:
        """Return random numbers to sample continuous actions: standard normal, (*shape, heads)."""
        return mx.random.normal((*shape, self.action.heads), key=key)

    def sample(
        self,
        outputs: tuple[mx.array, mx.array],
        noise: mx.array | None,
        mask: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        """Sample continuous actions: mean + std * noise. NaN means count as 0."""
        mean, logstd = outputs
        mean = mx.nan_to_num(mean, nan=0.0, posinf=MAX_FLOAT, neginf=-MAX_FLOAT)
        actions = mean if noise is None else mean + mx.exp(logstd) * noise.T
        actions = clamp(actions, -self.limits.action, self.limits.action)
        return actions.T, self._log_prob((mean, logstd), actions)

    def log_prob_entropy(
        self, outputs: tuple[mx.array, mx.array], actions: mx.array, mask: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Return the log-probabilities (n,) of continuous actions (n, a), and entropies (n,).

        Both are sums over the dimensions of an action. In one dimension, log p(x) =
        -((x - mean) / std)^2 / 2 - log(2 pi) / 2 - logstd, and the entropy is
        1/2 + log(2 pi) / 2 + logstd.
        """
        mean, logstd = outputs
        entropy = mx.sum(0.5 + HALF_LOG_TWO_PI + logstd)
        return self._log_prob(outputs, actions.T), mx.broadcast_to(entropy, mean.shape[1:])

    @staticmethod
    def _log_prob(outputs: tuple[mx.array, mx.array], actions: mx.array) -> mx.array:
        """Return log-probabilities (n,) of continuous actions (a, n) under their distributions."""
        mean, logstd = outputs
        distance = (actions - mean) * mx.exp(-logstd)
        return mx.sum(-0.5 * mx.square(distance) - HALF_LOG_TWO_PI - logstd, axis=0)


def distribution(action: ActionSpec, limits: ActionBounds = UNBOUNDED) -> Categorical | Gaussian:
    """Return the action distribution for an action space."""
    return Gaussian(action, limits) if action.continuous else Categorical(action)


record(__name__)
