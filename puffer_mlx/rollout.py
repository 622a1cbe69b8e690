"""Slots of rollout memory, shared by NumPy and MLX, and collecting into them.

A slot is a set of MLX arrays with writable NumPy views of the same memory: an environment writes
its row, the policy reads it, nothing is copied in between. Storage is time-major:

| field | shape | row t holds |
| --- | --- | --- |
| observations | (T + 1, N, D) | what the action of row t was chosen from |
| rewards, terminals | (T + 1, N) | what *arrived with* observation t: action t - 1's outcome |
| masks | (T + 1, N, A) | which actions are legal at t (uint8; None without a mask) |
| actions | (T, N, heads) | chosen at t; float32, discrete ids as whole numbers |
| logprobs, values | (T, N) | of that choice, by the policy that acted |

Row T is the first row of the next rollout: ``begin`` copies it to row 0. So the last action's
reward is row 0's in the next rollout, where the advantage doesn't look: as upstream, it is never
used for learning.

A lazy graph reads memory when it is *evaluated*: a slot may be rewritten only after every graph
that reads it is.
"""

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx import cuda
from puffer_mlx.profiler import Profiler
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Rows, VecEnv


def _shared(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """An MLX array of zeros and a writable view of its memory."""
    array = mx.zeros(shape, dtype)
    mx.eval(array)
    view = np.asarray(array)
    cuda.keep_on_host(view.ctypes.data, view.nbytes)
    return array, view


class Slot:
    """Memory of one rollout: T steps of N agents in Q groups.

    Args:
        spec: the environment's observations and actions.
        horizon: T.
        agents: N.
        groups: Q; must divide N.
    """

    def __init__(self, spec: EnvSpec, horizon: int, agents: int, groups: int) -> None:
        T, N = horizon, agents
        self.horizon = T
        dtype = mx.uint8 if spec.observation_dtype == np.uint8 else mx.float32
        self.observations, self._observations = _shared((T + 1, N, spec.observation_size), dtype)
        self.rewards, self._rewards = _shared((T + 1, N), mx.float32)
        self.terminals, self._terminals = _shared((T + 1, N), mx.float32)
        self.actions, self._actions = _shared((T, N, spec.action.heads), mx.float32)
        self.logprobs, self._logprobs = _shared((T, N), mx.float32)
        self.values, self._values = _shared((T, N), mx.float32)
        self.masks, self._masks = None, None
        if spec.mask_size:
            self.masks, self._masks = _shared((T + 1, N, spec.mask_size), mx.uint8)

        n = N // groups
        self.groups = [slice(g * n, (g + 1) * n) for g in range(groups)]
        # Views made once: what the policy reads at (t, group), and what the environment writes.
        self.inputs = [[self.observations[t, g] for g in self.groups] for t in range(T)]
        self.legal = [
            [None if self.masks is None else self.masks[t, g] for g in self.groups]
            for t in range(T)
        ]
        self.ended = [[self.terminals[t, g] for g in self.groups] for t in range(T)]
        masks = [mask for row in self.legal for mask in row if mask is not None]
        mx.eval(self.inputs, masks, self.ended)
        self.outputs = [[self._rows(t, g) for g in self.groups] for t in range(T + 1)]

    def _rows(self, t: int, agents: slice = slice(None)) -> Rows:
        masks = None if self._masks is None else self._masks[t, agents]
        return Rows(
            self._observations[t, agents],
            self._rewards[t, agents],
            self._terminals[t, agents],
            masks,
        )

    def reset(self, vec: VecEnv) -> None:
        """Start all environments; the rollout that begins next continues from here."""
        vec.reset(self._rows(self.horizon))

    def begin(self, previous: "Slot") -> None:
        """Copy the last row of the previous rollout (which may be this slot's own) to row 0."""
        for to, source in zip(self._rows(0), previous._rows(previous.horizon), strict=True):
            if to is not None and source is not None:
                np.copyto(to, source)

    def carry(self) -> dict[str, mx.array]:
        """Copies of row T, which the next rollout begins with, by field."""
        rows = self._rows(self.horizon)._asdict()
        return {name: mx.array(row) for name, row in rows.items() if row is not None}

    def restore(self, carry: dict[str, mx.array]) -> None:
        """Write what ``carry`` copied, of a slot of the same shapes, to row T."""
        for name, row in self._rows(self.horizon)._asdict().items():
            if row is not None:
                np.copyto(row, np.asarray(carry[name]))

    def record(self, t: int, group: int, chosen: mx.array) -> np.ndarray:
        """Store a group's choices (heads + 2, n) of step t; returns its actions (n, heads)."""
        agents = self.groups[group]
        rows = np.asarray(chosen)
        actions = self._actions[t, agents]
        np.copyto(actions, rows[:-2].T)
        np.copyto(self._logprobs[t, agents], rows[-2])
        np.copyto(self._values[t, agents], rows[-1])
        return actions


State = Any  # the network's, a tree of arrays
# Returns actions, log-probabilities and values as rows of one array, and the next state.
Act = Callable[..., tuple[mx.array, State]]


_made = threading.local()  # a stream belongs to its thread, and MLX never gives one back


def make_streams(cores: int, groups: int) -> list[mx.Stream]:
    """Streams to act on: two on a CPU with two cores and two groups, else the default one.

    MLX computes a CPU stream on one thread, and a group's step is too small to be worth splitting;
    two groups at a time use two cores. On a GPU a second stream doesn't help small kernels.
    """
    device = mx.default_device()
    if device != mx.cpu or min(cores, groups) < 2:
        return [mx.default_stream(device)]
    if not hasattr(_made, "streams"):
        _made.streams = [mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)]
    return _made.streams


def collect(
    slot: Slot,
    vec: VecEnv,
    act: Act,
    weights: dict,
    states: list[State],
    noise: mx.array,
    streams: list[mx.Stream],
    profiler: Profiler,
) -> list[State]:
    """Fill a slot with T steps of all agents.

    The policy's step for one group is under way while the next group's is prepared, and
    environments step while the policy acts for other groups. One evaluation for each group and
    step. The result doesn't depend on how they interleave.

    Args:
        slot: where to write; row 0 must be there (``Slot.begin``).
        vec: the environments, none of them stepping.
        act: the policy's compiled step, see ``update.py``.
        weights: the acting policy's, evaluated.
        states: recurrent state of each group, evaluated.
        noise: (T, N, heads), from ``distribution.noise``.
        streams: from ``make_streams``; groups take turns on them.
        profiler: gets the phases ``eval_gpu`` (acting), ``eval_copy`` and ``eval_env`` (waiting for
            environments).

    Returns:
        The groups' recurrent states after the last step.
    """
    states = list(states)
    parts = [[noise[t, agents] for agents in slot.groups] for t in range(slot.horizon)]
    mx.eval(parts)
    profiler.lap("eval_gpu")

    def finish(t: int, g: int, chosen: mx.array) -> None:
        mx.eval(chosen)
        profiler.lap("eval_gpu")
        actions = slot.record(t, g, chosen)
        profiler.lap("eval_copy")
        vec.send(g, actions, slot.outputs[t + 1][g])
        profiler.lap("eval_env")

    pending: tuple[int, int, mx.array] | None = None
    for t in range(slot.horizon):
        for g in range(len(slot.groups)):
            if pending and pending[1] == g:  # the only group: nothing to overlap with
                finish(*pending)
                pending = None
            vec.wait(g)
            profiler.lap("eval_env")
            with mx.stream(streams[g % len(streams)]):
                chosen, states[g] = act(
                    weights,
                    slot.inputs[t][g],
                    states[g],
                    parts[t][g],
                    slot.legal[t][g],
                    slot.ended[t][g],
                )
            mx.async_eval(chosen, states[g])
            profiler.lap("eval_gpu")
            if pending:
                finish(*pending)
            pending = t, g, chosen
    if pending:
        finish(*pending)
    for g in range(len(slot.groups)):
        vec.wait(g)
    mx.eval(states)
    profiler.lap("eval_env")
    return states
