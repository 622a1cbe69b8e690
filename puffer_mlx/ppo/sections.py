"""Minibatches of a rollout, and PPO's passes over its shuffled samples or segments.

Two kinds of steps are excluded: the last step of a rollout, whose next value is unknown, and the
last observation of an episode, whose action was ignored. Shuffled samples omit them; in a segment
their weight is 0.
"""

from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops import take_rows, take_several
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo.loss import Minibatch
from puffer_mlx.system.plain_functions import record

Fields = dict[str, Any]  # a rollout's arrays by name; masks and finals may be None


class SegmentView(NamedTuple):
    """View of the observations of some agents of a rollout, without a copy."""

    whole: mx.array
    """Observations of the rollout, (T, N, D)."""
    rows: mx.array
    """Indices of the agents, (S,) int32."""


def materialize(observations: mx.array | SegmentView) -> mx.array:
    """Return observations as an array (T, S, D); a ``SegmentView`` is copied."""
    if not isinstance(observations, SegmentView):
        return observations
    return take_rows(observations.whole, observations.rows, len(observations.whole))


class Inputs(NamedTuple):
    """Inputs of the forward pass for S rows."""

    observations: mx.array | SegmentView
    """(T, S, D)."""
    actions: mx.array
    """(T*S, heads) float32, time-major."""
    masks: mx.array | None
    """(T*S, A) uint8, or None."""
    keep: mx.array | None
    """(T, S), what states are multiplied by before each step (``Policy.keep``), or None."""


class MinibatchInputs(NamedTuple):
    """A minibatch: T steps of S rows, or M samples as one step of M."""

    inputs: Inputs
    compared: Any
    """Targets of the loss, including ``old_logprob`` (T*S,)."""
    state: Any
    """Recurrent state at the start of the rollout; None for the initial state."""


class MeanNoise(NamedTuple):
    """RPO's noise on the means of continuous actions, in training's forward pass alone.

    z is uniform within alpha of 0, of each sample and dimension, and another for each minibatch.
    Since log N(a; mean + z, std) = log N(a - z; mean, std), z is taken from the actions: so every
    form of the loss computes it. Source: Rahman and Xue (2022), "Robust Policy Optimization in Deep
    Reinforcement Learning", in the form of CleanRL's rpo_continuous_action.py.
    """

    alpha: float
    """train.rpo_alpha."""
    key: mx.array
    """An epoch's."""

    def draw(self, minibatches: int, actions: tuple[int, ...]) -> mx.array:
        """Return an epoch's z, float32: (minibatches, *actions).

        Args:
            minibatches: K of the epoch.
            actions: shape of one minibatch's actions.
        """
        shape = minibatches, *actions
        return mx.random.uniform(-self.alpha, self.alpha, shape, key=self.key)


def gather(policy: Policy, fields: Fields, rows: mx.array) -> Inputs:
    """Return the forward pass's inputs for rows (S,) of a rollout."""
    T, _, heads = fields["actions"].shape
    names = ["observations", "actions", "masks"]
    if policy.reset_on_terminal:
        names.append("terminals")
    sources = {}
    for name in names:
        if fields[name] is not None:
            sources[name] = fields[name]
    taken = dict(zip(sources, take_several([*sources.values()], rows, T), strict=True))
    return Inputs(
        taken["observations"],
        taken["actions"].reshape(-1, heads),
        taken["masks"].reshape(T * rows.size, -1) if "masks" in taken else None,
        policy.keep(taken["terminals"]) if "terminals" in taken else None,
    )


class Pass(NamedTuple):
    """Division of an epoch into passes and minibatches, constant during a run."""

    by_segment: bool
    """True to shuffle segments (recurrent networks), False to shuffle samples."""
    minibatches: int
    """Minibatches per pass. Samples that don't fill one are skipped, different ones each pass."""
    size: int
    """Segments or samples per minibatch."""
    count: int
    """Passes per epoch; the last one may end early."""

    @classmethod
    def of(cls, by_segment: bool, size: int, whole: int, epoch: int) -> "Pass":
        """The passes over a rollout.

        Args:
            by_segment: as the class has it, likewise size.
            size: see above.
            whole: segments or samples of the rollout.
            epoch: K, its minibatches.
        """
        minibatches = max(1, whole // size)
        return cls(by_segment, minibatches, size, -(-epoch // minibatches))

    def order(self, key: mx.array, numbers: mx.array) -> mx.array:
        """The order of one pass.

        Args:
            key: what is random about it.
            numbers: (n,) int32, the segments or samples to shuffle.

        Returns:
            (minibatches, size). If n is too small for that, all are repeated in the same order.
        """
        wanted = self.minibatches * self.size
        mixed = mx.random.permutation(numbers, key=key)
        times = -(-wanted // numbers.size)
        whole = mixed if times == 1 else mx.concatenate([mixed] * times)
        return whole[:wanted].reshape(self.minibatches, self.size)


def samples(fields: Fields, adv: mx.array, order: mx.array) -> list[MinibatchInputs]:
    """Minibatches of samples; the sample of step t and agent i has the number t N + i.

    Args:
        fields: a rollout's.
        adv: (T, N).
        order: (K, M) int32, the samples of each minibatch.

    Returns:
        K minibatches, each of M samples as one step.
    """
    T, N = adv.shape
    names = [name for name in ("observations", "actions", "masks") if fields[name] is not None]
    arrays = [fields[name][:T] for name in names]
    arrays += fields["logprobs"], fields["values"], adv
    flat, (K, M) = order.reshape(-1), order.shape
    # One gather for all minibatches of an array; a minibatch is a view of it.
    parts = [mx.split(mx.take(a.reshape(T * N, -1), flat, axis=0), K) for a in arrays]
    weight, sections = mx.ones(M), []
    for observations, actions, *masks, logprob, value, advantage in zip(*parts, strict=True):
        targets = (array.reshape(M) for array in (logprob, value, advantage))
        inputs = Inputs(observations[None], actions, masks[0] if masks else None, None)
        sections.append(MinibatchInputs(inputs, Minibatch(*targets, weight=weight), None))  # type: ignore
    return sections


def segments(
    policy: Policy, fields: Fields, adv: mx.array, learned: mx.array, states: Any, rows: mx.array
) -> MinibatchInputs:
    """A minibatch of whole segments.

    Args:
        policy: what is trained.
        fields: a rollout's.
        adv: (T, N).
        learned: (T, N) float32, 1 for steps that are learned from.
        states: the network's, with which the rollout of all N agents began; None: its initial one.
        rows: (S,) int32, the agents.
    """
    T = adv.shape[0]
    compared = fields["logprobs"], fields["values"], adv, learned
    old_logprob, old_value, of_rows, weight = (take_rows(a, rows, T).reshape(-1) for a in compared)
    batch = Minibatch(old_logprob, old_value, of_rows, weight)
    first = None if states is None else tree_map(lambda a: mx.take(a, rows, axis=0), states)
    return MinibatchInputs(gather(policy, fields, rows), batch, first)


record(__name__)
