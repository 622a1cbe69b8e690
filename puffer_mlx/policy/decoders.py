"""Decoders: features to action distributions and values.

Everything here is *action-first*: logits are (A, n), because reductions over the first axis are
several times faster than over a short last one on MLX's CPU backend, and no slower on a GPU.
"""

from dataclasses import dataclass
from itertools import accumulate

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.ops import linear_columns
from puffer_mlx.spec import ActionSpec

MASKED = -1e4  # logit of an illegal action, upstream's value; its probability underflows to 0
LARGEST = 3.4028e38


def log_softmax(logits: mx.array) -> mx.array:
    """Log-probabilities (A, n) of logits (A, n), over the first axis."""
    top = mx.stop_gradient(mx.max(logits, axis=0, keepdims=True))
    return logits - (top + mx.log(mx.sum(mx.exp(logits - top), axis=0, keepdims=True)))


@dataclass(frozen=True)
class Discrete:
    """Discrete heads and the value in one product without bias; the value is the last row."""

    action: ActionSpec
    hidden: int  # H

    def __post_init__(self) -> None:
        if self.action.continuous:
            raise UserError(
                f"the action space {self.action.sizes} is continuous; only discrete ones work yet",
                "choose the environment's discrete form (often env.continuous = 0)",
            )

    def init(self, key: mx.array) -> dict[str, mx.array]:
        """Weight (A + 1, H), uniform within ±1/sqrt(H)."""
        bound = self.hidden**-0.5
        shape = (self.action.logits + 1, self.hidden)
        return {"weight": mx.random.uniform(-bound, bound, shape, key=key)}

    def __call__(self, weights: dict[str, mx.array], h: mx.array) -> tuple[mx.array, mx.array]:
        """Features (n, H) -> logits (A, n), values (n,)."""
        y = linear_columns(h, weights["weight"])  # (A + 1, n)
        return y[:-1], y[-1]

    def noise(self, key: mx.array, shape: tuple[int, ...]) -> mx.array:
        """What ``sample`` needs: uniforms in (0, 1], shape (*shape, heads), one for each head."""
        return 1 - mx.random.uniform(shape=(*shape, self.action.heads), key=key)

    def sample(
        self, logits: mx.array, noise: mx.array, mask: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Draw actions by inverting the cumulative distribution.

        NaN and infinite logits are replaced first (0 and ±3.4e38), as upstream. If rounding leaves
        no action whose cumulative probability exceeds the uniform, the last legal one is taken.

        Args:
            logits: (A, n).
            noise: (n, heads) uniforms in (0, 1].
            mask: (n, A) uint8, non-zero where legal, or None.

        Returns:
            Actions (n, heads) float32 holding whole numbers, and their joint log-probability (n,).
        """
        logits = mx.nan_to_num(logits, nan=0.0, posinf=LARGEST, neginf=-LARGEST)
        actions, logprob = [], mx.zeros(logits.shape[1])
        for head, (logp, legal) in enumerate(self._heads(logits, mask)):
            size = logp.shape[0]
            choices = mx.arange(size)[:, None]
            last = size - 1 if legal is None else mx.max(mx.where(legal, choices, 0), axis=0)
            below = mx.cumsum(mx.exp(logp), axis=0) <= noise[:, head]
            action = mx.minimum(mx.sum(below, axis=0), last)
            actions.append(action.astype(mx.float32))
            logprob = logprob + self._pick(logp, action)
        return mx.stack(actions, axis=-1), logprob

    def log_prob_entropy(
        self, logits: mx.array, actions: mx.array, mask: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Joint log-probability and entropy, each the sum over heads.

        Args:
            logits: (A, n).
            actions: (n, heads) whole numbers.
            mask: (n, A) uint8, non-zero where legal, or None.

        Returns:
            Two arrays (n,).
        """
        logprob, entropy = mx.zeros(logits.shape[1]), mx.zeros(logits.shape[1])
        for head, (logp, _) in enumerate(self._heads(logits, mask)):
            logprob = logprob + self._pick(logp, actions[:, head])
            entropy = entropy - mx.sum(mx.exp(logp) * logp, axis=0)
        return logprob, entropy

    def _heads(self, logits: mx.array, mask: mx.array | None):
        """Each head's log-probabilities (size, n) and legal actions, (size, n) or None."""
        stops = list(accumulate(self.action.sizes))
        for start, stop in zip([0, *stops], stops, strict=False):
            head, legal = logits[start:stop], None
            if mask is not None:
                legal = mask[:, start:stop].T != 0
                head = mx.where(legal, head, MASKED)
            yield log_softmax(head), legal

    @staticmethod
    def _pick(logp: mx.array, action: mx.array) -> mx.array:
        """Take logp (size, n) at action (n,): a sum over a one-hot fuses where a gather doesn't."""
        chosen = mx.arange(logp.shape[0])[:, None] == action[None]
        return mx.sum(mx.where(chosen, logp, 0), axis=0)
