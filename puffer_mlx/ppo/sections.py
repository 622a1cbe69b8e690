"""Divide a rollout into minibatches of samples or segments, shuffled in PPO's passes.

Two kinds of steps are not trained on: the last step of a rollout, whose reward is unknown, and an
episode's last observation, whose action was ignored. Shuffled samples omit these steps. In a
segment, their weight is 0.
"""

from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops import take_rows, take_several
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo.loss import Targets
from puffer_mlx.system.plain_functions import record

Fields = dict[str, Any]  # a rollout's arrays by name; masks and final_observations may be None
RPO = 0x52504F  # combined with a random key to get the key of RPO's noise


class Minibatch(NamedTuple):
    """A minibatch: T steps of S segments, or one step of S samples."""

    observations: Any
    """Observations, (T, S, D), or (T, N, D) with a ``view``."""
    actions: mx.array
    """Actions, (T*S, heads) float32, time-major."""
    masks: mx.array | None = None
    """Action masks, (T*S, A) uint8. None without masks."""
    not_done: mx.array | None = None
    """0 where an episode ended before a step, else 1, (T, S): the factor of recurrent states. None
    without resets."""
    targets: Any = None
    """``Targets`` of the loss. None when only the forward pass is computed."""
    state: Any = None
    """Recurrent states at the first step, (S, ...). None for the initial states."""
    view: mx.array | None = None
    """Indices of the S agents, int32, if ``observations`` contains all N agents, else None."""


def rpo_noise(alpha: float, minibatches: int, size: int, heads: int, key: mx.array) -> mx.array:
    """Return an epoch's RPO noise z on the means of continuous actions, (K, size, heads).

    z is uniform in [-alpha, alpha] and differs between minibatches, samples and dimensions. Because
    log N(a; mean + z, std) = log N(a - z; mean, std), z is subtracted from the actions. So every
    implementation of the loss supports it.

    Source: Rahman and Xue (2022), "Robust Policy Optimization in Deep Reinforcement Learning", as
    implemented in CleanRL's rpo_continuous_action.py.

    Args:
        alpha: largest absolute value of z, ``train.rpo_alpha``.
        minibatches: K, the number of minibatches per epoch.
        size: samples per minibatch.
        heads: dimensions of an action.
        key: random key of the update.
    """
    key = key ^ mx.array(RPO, mx.uint32)  # differs from the algorithm's keys
    return mx.random.uniform(-alpha, alpha, (minibatches, size, heads), key=key)


def gather(policy: Policy, fields: Fields, rows: mx.array) -> Minibatch:
    """Gather the minibatch of some agents of a rollout, without targets and states.

    Args:
        policy: the policy to train.
        fields: the arrays of a rollout by name.
        rows: indices of the agents, (S,) int32.
    """
    T, _, heads = fields["actions"].shape
    names = ["observations", "actions"]
    if fields["masks"] is not None:
        names.append("masks")
    if policy.reset_on_terminal:
        names.append("terminals")
    arrays = take_several([fields[name] for name in names], rows, T)
    taken = dict(zip(names, arrays, strict=True))
    masks = taken.get("masks")
    terminals = taken.get("terminals")
    return Minibatch(
        observations=taken["observations"],
        actions=taken["actions"].reshape(-1, heads),
        masks=None if masks is None else masks.reshape(T * rows.size, -1),
        not_done=None if terminals is None else policy.not_done(terminals),
    )


class Pass(NamedTuple):
    """Division of an epoch into passes over the rollout, and of a pass into minibatches."""

    by_segment: bool
    """True to shuffle segments (recurrent networks), False to shuffle samples."""
    minibatches: int
    """Complete minibatches per pass. Each pass skips a different remainder."""
    size: int
    """Segments or samples per minibatch."""
    count: int
    """Passes over the rollout per epoch. The last pass may end early."""

    @classmethod
    def of(cls, by_segment: bool, size: int, whole: int, epoch: int) -> "Pass":
        """Return the division of an epoch into passes and minibatches.

        Args:
            by_segment: True to shuffle segments, False to shuffle samples.
            size: segments or samples per minibatch.
            whole: number of segments or samples in the rollout.
            epoch: number of minibatches per epoch.
        """
        minibatches = max(1, whole // size)
        return cls(by_segment, minibatches, size, -(-epoch // minibatches))

    def order(self, key: mx.array, indices: mx.array) -> mx.array:
        """Shuffle the segments or samples of one pass, and divide them into minibatches.

        Args:
            key: random key.
            indices: segments or samples to shuffle, (n,) int32.

        Returns:
            Indices, (minibatches, size). If n is smaller than minibatches * size, the permutation
            is repeated.
        """
        wanted = self.minibatches * self.size
        mixed = mx.random.permutation(indices, key=key)
        times = -(-wanted // indices.size)
        whole = mixed if times == 1 else mx.concatenate([mixed] * times)
        return whole[:wanted].reshape(self.minibatches, self.size)


def samples(fields: Fields, adv: mx.array, order: mx.array) -> list[Minibatch]:
    """Gather an epoch's minibatches of samples, each as one step.

    Args:
        fields: the arrays of a rollout by name.
        adv: advantages, (T, N).
        order: sample indices of each minibatch, (K, M) int32. The sample of step t and agent i has
            the index t N + i.

    Returns:
        K minibatches, each of M samples as one step.
    """
    T, N = adv.shape
    K, M = order.shape
    names = [name for name in ("observations", "actions", "masks") if fields[name] is not None]
    arrays = [fields[name][:T] for name in names]
    arrays += fields["logprobs"], fields["values"], adv
    # Gather each array once for all minibatches. A minibatch is a view of the result.
    flat = order.reshape(-1)
    gathered = [mx.split(mx.take(a.reshape(T * N, -1), flat, axis=0), K) for a in arrays]
    weight = mx.ones(M)
    minibatches = []
    for observations, actions, *masks, logprob, value, advantage in zip(*gathered, strict=True):
        targets = Targets(*(a.reshape(M) for a in (logprob, value, advantage)), weight=weight)
        minibatches.append(
            Minibatch(observations[None], actions, masks[0] if masks else None, targets=targets)
        )
    return minibatches


def segments(
    policy: Policy, fields: Fields, adv: mx.array, weight: mx.array, states: Any, rows: mx.array
) -> Minibatch:
    """Gather a minibatch of complete segments, with targets and recurrent states.

    Args:
        policy: the policy to train.
        fields: the arrays of a rollout by name.
        adv: advantages, (T, N).
        weight: 1 for steps to train on, else 0, (T, N) float32.
        states: recurrent states of all N agents at the start of the rollout. None for the initial
            state.
        rows: indices of the agents, (S,) int32.
    """
    T = adv.shape[0]
    arrays = fields["logprobs"], fields["values"], adv, weight
    targets = Targets(*(take_rows(array, rows, T).reshape(-1) for array in arrays))
    if states is not None:
        states = tree_map(lambda array: mx.take(array, rows, axis=0), states)
    return gather(policy, fields, rows)._replace(targets=targets, state=states)


record(__name__)
