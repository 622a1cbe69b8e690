"""Minibatches of a rollout, and PPO's passes over its shuffled samples or segments.

Two kinds of steps are excluded: the last step of a rollout, whose next value is unknown, and the
last observation of an episode, whose action was ignored. Shuffled samples omit these steps. In a
segment their weight is 0.
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
    """Return observations as an array (T, S, D). A ``SegmentView`` is copied."""
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
    """(T, S), factor of the states before each step (``Policy.not_done``), or None."""


class MinibatchInputs(NamedTuple):
    """A minibatch: T steps of S rows, or M samples as one step of M rows."""

    inputs: Inputs
    compared: Any
    """Targets of the loss, including ``old_logprob`` (T*S,)."""
    state: Any
    """Recurrent state at the start of the rollout. None for the initial state."""


class MeanNoise(NamedTuple):
    """RPO's noise z on the means of continuous actions, used only in training's forward pass.

    z is uniform in [-alpha, alpha] and differs between minibatches, samples and dimensions. Because
    log N(a; mean + z, std) = log N(a - z; mean, std), z is subtracted from the actions. So every
    implementation of the loss supports it.

    Source: Rahman and Xue (2022), "Robust Policy Optimization in Deep Reinforcement Learning", as
    implemented in CleanRL's rpo_continuous_action.py.
    """

    alpha: float
    """Largest absolute value of z: ``train.rpo_alpha``."""
    key: mx.array
    """Random key of the epoch."""

    def draw(self, minibatches: int, actions: tuple[int, ...]) -> mx.array:
        """Return z for an epoch, (minibatches, *actions) float32.

        Args:
            minibatches: K, the number of minibatches per epoch.
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
        policy.not_done(taken["terminals"]) if "terminals" in taken else None,
    )


class Pass(NamedTuple):
    """Division of an epoch into passes and minibatches, constant during a run."""

    by_segment: bool
    """True to shuffle segments (recurrent networks), False to shuffle samples."""
    minibatches: int
    """Minibatches per pass. A remainder that fills no minibatch is skipped; it varies by pass."""
    size: int
    """Segments or samples per minibatch."""
    count: int
    """Passes per epoch. The last one may end early."""

    @classmethod
    def of(cls, by_segment: bool, size: int, whole: int, epoch: int) -> "Pass":
        """Return the division of an epoch.

        Args:
            by_segment: True to shuffle segments, False to shuffle samples.
            size: segments or samples per minibatch.
            whole: number of segments or samples in the rollout.
            epoch: K, the number of minibatches per epoch.
        """
        minibatches = max(1, whole // size)
        return cls(by_segment, minibatches, size, -(-epoch // minibatches))

    def order(self, key: mx.array, numbers: mx.array) -> mx.array:
        """Return the shuffled segments or samples of one pass.

        Args:
            key: random key.
            numbers: indices of the segments or samples to shuffle, (n,) int32.

        Returns:
            Indices (minibatches, size). If n is smaller than their product, the permutation is
            repeated.
        """
        wanted = self.minibatches * self.size
        mixed = mx.random.permutation(numbers, key=key)
        times = -(-wanted // numbers.size)
        whole = mixed if times == 1 else mx.concatenate([mixed] * times)
        return whole[:wanted].reshape(self.minibatches, self.size)


def samples(fields: Fields, adv: mx.array, order: mx.array) -> list[MinibatchInputs]:
    """Return minibatches of samples.

    Args:
        fields: the arrays of a rollout by name.
        adv: advantages, (T, N).
        order: sample indices of each minibatch, (K, M) int32. The sample of step t and agent i has
            the index t N + i.

    Returns:
        K minibatches, each of M samples as one step.
    """
    T, N = adv.shape
    names = [name for name in ("observations", "actions", "masks") if fields[name] is not None]
    arrays = [fields[name][:T] for name in names]
    arrays += fields["logprobs"], fields["values"], adv
    flat, (K, M) = order.reshape(-1), order.shape
    # Gather each array once for all minibatches. A minibatch is a view of the result.
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
    """Return a minibatch of complete segments.

    Args:
        policy: the policy to train.
        fields: the arrays of a rollout by name.
        adv: advantages, (T, N).
        learned: 1 for steps to train on, else 0, (T, N) float32.
        states: recurrent states of all N agents at the start of the rollout. None for the initial
            state.
        rows: indices of the agents, (S,) int32.
    """
    T = adv.shape[0]
    compared = fields["logprobs"], fields["values"], adv, learned
    old_logprob, old_value, of_rows, weight = (take_rows(a, rows, T).reshape(-1) for a in compared)
    batch = Minibatch(old_logprob, old_value, of_rows, weight)
    first = None if states is None else tree_map(lambda a: mx.take(a, rows, axis=0), states)
    return MinibatchInputs(gather(policy, fields, rows), batch, first)


record(__name__)
