"""Minibatches: rows of a rollout, as the forward pass reads them, and what it is compared with."""

from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.ops import take_rows
from puffer_mlx.policy.policy import Policy

Fields = dict[str, Any]  # a rollout's arrays by name; masks and finals may be None


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


class Section(NamedTuple):
    """A minibatch: T steps of S rows, or M samples as one step of M."""

    inputs: Inputs
    compared: Any
    """What the loss compares the forward pass with, with an ``old_logprob`` (T*S,)."""
    state: Any
    """The network's, with which the rows' rollout began; None: its initial one."""


def gather(policy: Policy, fields: Fields, rows: mx.array) -> Inputs:
    """What the forward pass reads of some rows (S,) of a rollout."""
    T, heads = fields["actions"].shape[0], policy.decoder.action.heads
    masks, resets = fields["masks"], policy.reset_on_terminal
    return Inputs(
        take_rows(fields["observations"], rows, T),
        take_rows(fields["actions"], rows, T).reshape(-1, heads),
        None if masks is None else take_rows(masks, rows, T).reshape(-1, masks.shape[-1]),
        policy.keep(take_rows(fields["terminals"], rows, T)) if resets else None,
    )
