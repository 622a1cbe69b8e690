"""PPO's passes over a rollout: its samples in a random order, divided into minibatches.

Not learned from are a rollout's last step, beyond which nothing is known, and an episode's last
observation, whose action was ignored: among shuffled samples they are left out, in a segment they
weigh nothing.
"""

from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.ops import take_rows
from puffer_mlx.ppo.loss import Minibatch

Fields = dict[str, Any]  # a rollout's arrays by name; masks and finals may be None


class Pass(NamedTuple):
    """How a pass is divided; the same for a whole run."""

    by_segment: bool
    """Whether whole segments are shuffled, as of a network with memory; else samples."""
    minibatches: int
    """Of a pass. What is left over of the epoch is another part of it in each pass."""
    size: int
    """Of a minibatch: segments, or samples."""
    count: int
    """Passes of an epoch, of which the last may end early."""

    @classmethod
    def of(cls, config: Config, by_segment: bool) -> "Pass":
        """The passes of a configuration."""
        size = config.segments if by_segment else config.train.minibatch_size
        whole = config.vec.total_agents if by_segment else config.batch_size
        minibatches = whole // size
        return cls(by_segment, minibatches, size, -(-config.minibatches // minibatches))

    def order(self, key: mx.array, what: mx.array) -> mx.array:
        """Numbers ``what`` (n,) in a random order, (minibatches, size); some twice if n is less."""
        wanted = self.minibatches * self.size
        mixed = mx.random.permutation(what, key=key)
        times = -(-wanted // what.size)
        whole = mixed if times == 1 else mx.concatenate([mixed] * times)
        return whole[:wanted].reshape(self.minibatches, self.size)


def samples(
    fields: Fields, adv: mx.array, order: mx.array
) -> list[tuple[dict[str, mx.array], Minibatch]]:
    """Minibatches of samples t N + i.

    Args:
        fields: a rollout's.
        adv: (T, N).
        order: (K, M) int32.

    Returns:
        Of each of K minibatches what the forward pass reads, (M, ...) by name, and its targets.
    """
    T, N = adv.shape
    names = [name for name in ("observations", "actions", "masks") if fields[name] is not None]
    compared = fields["logprobs"], fields["values"], adv
    arrays = [*(fields[name][:T] for name in names), *compared]
    flat, (K, M) = order.reshape(-1), order.shape
    # One gather for all minibatches of an array; a minibatch is a view of it.
    parts = [mx.split(mx.take(a.reshape(T * N, -1), flat, axis=0), K) for a in arrays]
    read, targets, weight = parts[: len(names)], parts[len(names) :], mx.ones(M)
    return [
        (
            {name: part[k] for name, part in zip(names, read, strict=True)},
            Minibatch(*(part[k].reshape(M) for part in targets), weight=weight),  # type: ignore
        )
        for k in range(K)
    ]


def segments(
    fields: Fields, adv: mx.array, learned: mx.array, states: Any, rows: mx.array
) -> tuple[dict[str, mx.array], Minibatch, Any]:
    """A minibatch of whole segments.

    Args:
        fields: a rollout's.
        adv: (T, N).
        learned: (T, N) float32, 1 for steps that are learned from.
        states: the network's, with which all agents' rollout began; None: its initial one.
        rows: (S,) int32, the agents.

    Returns:
        What the forward pass reads, (T, S, ...) by name; targets; states of S agents, or None.
    """
    T = adv.shape[0]
    names = "observations", "actions", "masks", "terminals"
    read = {n: take_rows(fields[n], rows, T) for n in names if fields[n] is not None}
    compared = fields["logprobs"], fields["values"], adv, learned
    old_logprob, old_value, of_rows, weight = (take_rows(a, rows, T).reshape(-1) for a in compared)
    batch = Minibatch(old_logprob, old_value, of_rows, weight)
    first = None if states is None else tree_map(lambda a: mx.take(a, rows, axis=0), states)
    return read, batch, first
