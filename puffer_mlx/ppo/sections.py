"""Minibatches: rows of a rollout, as the forward pass reads them, and what it is compared with.

``puffer4`` gathers drawn rows, ``puffer5`` splits all rows in their order, ``ppo`` shuffles them.
"""

from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config import Train
from puffer_mlx.ops import split_rows, take_rows, take_targets
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import priority
from puffer_mlx.ppo.loss import Minibatch
from puffer_mlx.ppo.shuffle import Fields, samples, segments


class Inputs(NamedTuple):
    """What the forward pass reads of S rows."""

    observations: mx.array
    """(T, S, D)."""
    actions: mx.array
    """(T*S, heads) float32, time-major."""
    masks: mx.array | None
    """(T*S, A) uint8, or None."""
    keep: mx.array | None
    """(T, S), what states are multiplied by before each step (``Policy.keep``), or None."""


class Segments(NamedTuple):
    """What puffer5 compares S rows with, all float32."""

    old_logprob: mx.array
    """(T*S,), time-major; of the rollout's policy, as the next."""
    old_value: mx.array
    """(T*S,)."""
    rewards: mx.array
    """(T, S)."""
    terminals: mx.array
    """(T, S)."""
    finals: mx.array | None
    """(T, S), as of the rollout, or None."""


class Section(NamedTuple):
    """A minibatch of puffer5 or ppo: T steps of S rows, or M shuffled samples as one step of M."""

    inputs: Inputs
    compared: Segments | Minibatch
    """What the forward pass is compared with, by puffer5 and by ppo."""
    state: Any
    """The network's, with which the rows' rollout began; None: its initial one."""


class Sections:
    """What a rollout is divided into.

    Args:
        policy: says what it reads.
        train: section [train].
    """

    def __init__(self, policy: Policy, train: Train) -> None:
        self._policy, self._train = policy, train
        self._heads = policy.decoder.action.heads

    def draw(self, fields: Fields, adv, values, uniforms, beta):
        """puffer4: draw the minibatch's rows (S,) and their targets."""
        rows, weights = priority.choose(adv, uniforms, beta, self._train.prio_alpha)
        finals = fields.get("finals")
        return rows, Minibatch(
            *take_targets(fields["logprobs"], values, adv, finals, rows, weights)
        )

    def gather(self, fields: Fields, rows: mx.array) -> Inputs:
        """puffer4: what the forward pass reads of the rows."""
        T = fields["actions"].shape[0]
        masks, resets = fields["masks"], self._policy.reset_on_terminal
        return Inputs(
            take_rows(fields["observations"], rows, T),
            take_rows(fields["actions"], rows, T).reshape(-1, self._heads),
            None if masks is None else take_rows(masks, rows, T).reshape(-1, masks.shape[-1]),
            self._policy.keep(take_rows(fields["terminals"], rows, T)) if resets else None,
        )

    def split(self, fields: Fields, states: Any) -> list[Section]:
        """puffer5: all rows in their order, S by S.

        Args:
            fields: the rollout's.
            states: the network's, of N agents; None: its initial one.
        """
        (T, N), S = fields["actions"].shape[:2], self._train.minibatch_size // self._train.horizon
        fields = {**fields, "keep": self._policy.keep(fields["terminals"])}
        parts = {n: split_rows(a, S, T) for n, a in fields.items() if a is not None}

        def section(k: int) -> Section:
            steps = {name: own[k] for name, own in parts.items()}
            flat = {name: own.flatten(0, 1) for name, own in steps.items()}
            masks, keep, finals = flat.get("masks"), steps.get("keep"), steps.get("finals")
            came = steps["rewards"], steps["terminals"], finals
            return Section(
                Inputs(steps["observations"], flat["actions"], masks, keep),
                Segments(flat["logprobs"], flat["values"], *came),
                None if states is None else tree_map(lambda a: a[k * S : (k + 1) * S], states),
            )

        return [section(k) for k in range(N // S)]

    def shuffle(
        self, fields: Fields, adv: mx.array, states: Any, learned: mx.array, order: mx.array
    ) -> list[Section]:
        """ppo: a pass's minibatches.

        Args:
            fields: the rollout's.
            adv: (T, N).
            states: the network's, of N agents; None: its initial one, or it has no memory.
            learned: (T, N) float32, 1 for steps that are learned from.
            order: (K, M) int32 of samples; for a network with memory (K, S) of agents.
        """
        if not self._policy.has_memory:
            picked = samples(fields, adv, order)
            return [Section(_rows_of_one_step(read), batch, None) for read, batch in picked]

        def section(rows: mx.array) -> Section:
            read, batch, first = segments(fields, adv, learned, states, rows)
            masks, keep = read.get("masks"), self._policy.keep(read["terminals"])
            masks = None if masks is None else masks.flatten(0, 1)
            actions = read["actions"].reshape(-1, self._heads)
            return Section(Inputs(read["observations"], actions, masks, keep), batch, first)

        return [section(rows.reshape(-1)) for rows in mx.split(order, len(order))]


def _rows_of_one_step(read: dict[str, mx.array]) -> Inputs:
    """What the forward pass reads of M samples: M rows of one step."""
    return Inputs(read["observations"][None], read["actions"], read.get("masks"), None)
