"""Slots of rollout memory, shared by NumPy and MLX, and collecting into them.

A slot is a set of MLX arrays with writable NumPy views of the same memory: an environment writes
its row, the policy reads it, nothing is copied in between. Storage is time-major:

| field | shape | row t holds |
| --- | --- | --- |
| observations | (T + 1, N, D) | what the action of row t was chosen from |
| rewards, terminals | (T + 1, N) | what *arrived with* observation t: action t - 1's outcome |
| masks | (T + 1, N, A) | which actions are legal at t (uint8; None without a mask) |
| finals | (T + 1, N) | 1, 2 where observation t is an episode's last; None: ``VecEnv.finals`` |
| actions | (T, N, heads) | chosen at t; float32, discrete ids as whole numbers |
| logprobs, values | (T, N) | of that choice, by the policy that acted |

Row T is the first row of the next rollout: ``begin`` copies it to row 0. So the last action's
reward is row 0's in the next rollout, where the advantage doesn't look: as upstream, it is never
used for learning.

A lazy graph reads memory when it is *evaluated*: a slot may be rewritten only after every graph
that reads it is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import ACTING, ENVIRONMENTS
from puffer_mlx.rollout.compiled_step import Actor
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system import cuda_memory
from puffer_mlx.system.devices import building
from puffer_mlx.vec.base import Rows, VecEnv, WholeRollouts


def _shared(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """An MLX array of zeros and a writable view of its memory."""
    array = mx.zeros(shape, dtype)
    mx.eval(array)
    view = np.asarray(array)
    cuda_memory.keep_on_host(view.ctypes.data, view.nbytes)
    return array, view


class Views(NamedTuple):
    """What a policy reads and writes of a slot, as NumPy arrays: shapes as above."""

    observations: np.ndarray
    terminals: np.ndarray
    masks: np.ndarray | None
    actions: np.ndarray
    logprobs: np.ndarray
    values: np.ndarray


class RolloutBuffer:
    """Memory of one rollout: T steps of N agents in Q groups.

    Args:
        spec: the environment's observations and actions.
        horizon: T.
        agents: N.
        groups: Q; must divide N.
        finals: whether the environments tell last observations (``VecEnv.finals``).
    """

    def __init__(
        self, spec: EnvSpec, horizon: int, agents: int, groups: int, finals: bool = False
    ) -> None:
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
        self.finals, self._finals = _shared((T + 1, N), mx.float32) if finals else (None, None)

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

    @property
    def views(self) -> Views:
        """The same memory as NumPy arrays."""
        return Views(
            self._observations,
            self._terminals,
            self._masks,
            self._actions,
            self._logprobs,
            self._values,
        )

    @property
    def rows(self) -> Rows:
        """What environments write, of all T + 1 steps."""
        return Rows(self._observations, self._rewards, self._terminals, self._masks, self._finals)

    def _rows(self, t: int, agents: slice = slice(None)) -> Rows:
        return self.rows.part(t, agents)

    def reset(self, vec: VecEnv) -> None:
        """Start all environments; the rollout that begins next continues from here."""
        vec.reset(self._rows(self.horizon))

    def begin(self, previous: "RolloutBuffer") -> None:
        """Copy the last row of the previous rollout (which may be this slot's own) to row 0."""
        for to, source in zip(self._rows(0), previous._rows(previous.horizon), strict=True):
            if to is not None and source is not None:
                np.copyto(to, source)

    def carry(self, row: int = -1) -> dict[str, mx.array]:
        """Copies of row T, which the next rollout begins with, or of another, by field."""
        rows = self._rows(row)._asdict()
        return {name: mx.array(row) for name, row in rows.items() if row is not None}

    @property
    def fields(self) -> dict[str, mx.array | None]:
        """What training reads, by name; masks and finals may be None."""
        names = "observations actions logprobs rewards terminals masks finals values"
        return {name: getattr(self, name) for name in names.split()}

    def restore(self, carry: dict[str, mx.array]) -> None:
        """Write what ``carry`` copied, of a slot of the same shapes, to row T."""
        for name, row in self._rows(self.horizon)._asdict().items():
            if row is not None:
                np.copyto(row, np.asarray(carry[name]))

    def record(self, t: int, group: int, rows: np.ndarray) -> np.ndarray:
        """Store a group's choices (heads + 2, n) of step t; returns its actions (n, heads)."""
        agents = self.groups[group]
        actions = self._actions[t, agents]
        np.copyto(actions, rows[:-2].T)
        np.copyto(self._logprobs[t, agents], rows[-2])
        np.copyto(self._values[t, agents], rows[-1])
        return actions


SPANS = 4096  # of threads, that a traced rollout notes at most

State = Any  # the network's, a tree of arrays
# Returns actions, log-probabilities and values as rows of one array, and the next state.
Act = Callable[..., tuple[mx.array, State]]


def collect(
    slot: RolloutBuffer,
    vec: VecEnv,
    act: Act,
    weights: dict,
    states: list[State],
    noise: mx.array,
    streams: list[mx.Stream],
    lane: PhaseTimer,
) -> list[State]:
    """Fill a slot with T steps of all agents.

    The policy's step for one group is under way while the next group's is prepared, and
    environments step while the policy acts for other groups. One evaluation for each group and
    step. The result doesn't depend on how they interleave.

    Args:
        slot: where to write; row 0 must be there (``Slot.begin``).
        vec: the environments, none of them stepping.
        act: the policy's compiled step, see ``ppo/update.py``.
        weights: the acting policy's, evaluated.
        states: recurrent state of each group, evaluated.
        noise: (T, N, heads), from ``distribution.noise``.
        streams: from ``acting_streams``; groups take turns on them.
        lane: gets the phases ``eval_copy_in``, ``eval_act`` (acting), ``eval_copy_out``,
            ``eval_store`` and ``eval_env`` (waiting for environments).

    Returns:
        The groups' recurrent states after the last step.
    """
    states = list(states)
    with building, mx.stream(streams[0]):
        parts = [[noise[t, agents] for agents in slot.groups] for t in range(slot.horizon)]
    mx.eval(parts)
    lane.lap("eval_copy_in")

    trace = lane.trace
    begun = [0.0] * len(slot.groups)  # when what is under way for a group began

    def finish(t: int, g: int, chosen: mx.array) -> None:
        mx.eval(chosen)
        lane.lap("eval_act")
        if trace:
            trace.span(f"{ACTING} {g % len(streams)}", "act", begun[g], lane.now, group=g, step=t)
        rows = np.asarray(chosen)
        lane.lap("eval_copy_out")
        actions = slot.record(t, g, rows)
        lane.lap("eval_store")
        begun[g] = lane.now
        vec.send(g, actions, slot.outputs[t + 1][g])
        lane.lap("eval_env")

    def arrive(t: int, g: int) -> None:
        vec.wait(g)
        lane.lap("eval_env")
        if trace and t:
            trace.span(ENVIRONMENTS, "step", begun[g], lane.now, group=g, step=t - 1)
        begun[g] = lane.now

    pending: tuple[int, int, mx.array] | None = None
    for t in range(slot.horizon):
        for g in range(len(slot.groups)):
            if pending and pending[1] == g:  # the only group: nothing to overlap with
                finish(*pending)
                pending = None
            arrive(t, g)
            with building, mx.stream(streams[g % len(streams)]):
                chosen, states[g] = act(
                    weights,
                    slot.inputs[t][g],
                    states[g],
                    parts[t][g],
                    slot.legal[t][g],
                    slot.ended[t][g],
                )
            mx.async_eval(chosen, states[g])
            lane.lap("eval_act")
            if pending:
                finish(*pending)
            pending = t, g, chosen
    if pending:
        finish(*pending)
    for g in range(len(slot.groups)):
        arrive(slot.horizon, g)
    mx.eval(states)
    lane.lap("eval_env")
    return states


def collect_in_c(
    slot: RolloutBuffer,
    vec: WholeRollouts,
    actor: Actor,
    weights: dict,
    states: list[State],
    noise: mx.array,
    lane: PhaseTimer,
) -> list[State]:
    """``collect`` with the policy's step in C: one call, in which every thread takes some agents.

    Args:
        slot: where to write; row 0 must be there (``Slot.begin``).
        vec: the environments, none of them stepping.
        actor: the policy's step.
        weights: the acting policy's, evaluated, float32, for the CPU.
        states: recurrent state of each group, evaluated.
        noise: (T, N, heads), evaluated.
        lane: gets the phases of ``collect``; acting and environments share the call's time as they
            shared the threads'.

    Returns:
        The groups' recurrent states after the last step.
    """
    whole = tree_map(lambda *groups: np.concatenate([np.asarray(g) for g in groups]), *states)
    actor.prepare(weights)
    address = actor.bind(slot.views, np.asarray(noise), whole)
    lane.lap("eval_copy_in")
    trace = lane.trace
    spans = SPANS if trace else 0
    found = vec.collect(slot.horizon, address, slot.views.actions, slot.rows, spans)
    lane.lap("eval_act")
    sampling = actor.seconds()["sample"]
    parts = {"eval_act": found.acting - sampling, "eval_sample": sampling}
    lane.part("eval_act", {**parts, "eval_env": found.stepping})
    for thread, first, begin, end in found.spans:
        assert trace  # else there are none
        trace.span(f"{ACTING} and stepping, thread {thread}", "rollout", begin, end, agent=first)
    after = [tree_map(lambda a, g=g: mx.array(a[g]), whole) for g in slot.groups]
    mx.eval(after)
    lane.lap("eval_copy_out")
    return after
