"""Rollout memory, shared by NumPy and MLX; the ways of acting fill it (``acting.py``).

A buffer is a set of MLX arrays with writable NumPy views of the same memory: an environment writes
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

The rollout owns this memory: environments, the policy's step in C and a GPU's kernel of it write
where their results are to be, behind MLX's back.

A lazy graph reads memory when it is *evaluated*: a buffer may be rewritten only after every graph
that reads it is.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.spec import EnvSpec
from puffer_mlx.system import mlx_memory
from puffer_mlx.vec.base import PreparedStep, PreparesSteps, Rows, VecEnv


def _shared(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """An MLX array of zeros and a writable view of its memory."""
    array = mx.zeros(shape, dtype)
    mx.eval(array)
    view = np.asarray(array)
    mlx_memory.keep_on_host(view.ctypes.data, view.nbytes)
    return array, view


State = Any  # a network's recurrent state of some agents, a tree of arrays
SAMPLED = 64  # one agent of so many shows how far a rollout is
UNWRITTEN = -1.0  # a terminal that no environment writes


class Views(NamedTuple):
    """What a policy reads and writes of a buffer, as NumPy arrays: shapes as above."""

    observations: np.ndarray
    terminals: np.ndarray
    masks: np.ndarray | None
    actions: np.ndarray
    logprobs: np.ndarray
    values: np.ndarray


class Part(NamedTuple):
    """One step of n agents who are neighbours: what a policy reads and writes of it.

    In the order in which ``StepOnGPU.act`` takes them, but for the views.
    """

    observations: mx.array  # (n, D)
    mask: mx.array | None  # (n, A)
    terminals: mx.array  # (n,)
    actions: mx.array  # (n, heads)
    logprobs: mx.array  # (n,)
    values: mx.array  # (n,)
    seen: mx.array | None  # (n, D), a copy of the observations that is for the GPU alone
    views: tuple[np.ndarray, ...]  # actions, log-probabilities and values for NumPy


class RolloutBuffer:
    """Memory of one rollout: T steps of N agents in Q groups.

    Args:
        spec: the environment's observations and actions.
        horizon: T.
        agents: N.
        groups: Q; must divide N.
        finals: True if the environments report last observations (``VecEnv.finals``).

    Attributes:
        views: NumPy arrays of the memory that a policy reads and writes.
        rows: NumPy arrays of the memory that environments write, of all T + 1 steps.
    """

    def __init__(
        self, spec: EnvSpec, horizon: int, agents: int, groups: int, finals: bool = False
    ) -> None:
        T, N = horizon, agents
        self._spec = spec
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
        self.views = Views(
            self._observations,
            self._terminals,
            self._masks,
            self._actions,
            self._logprobs,
            self._values,
        )
        self.rows = Rows(
            self._observations, self._rewards, self._terminals, self._masks, self._finals
        )

        n = N // groups
        self.groups = [slice(g * n, (g + 1) * n) for g in range(groups)]
        # Views made once: what environments write and get at (t, group); see `parts`, too.
        self.outputs = [[self._rows(t, g) for g in self.groups] for t in range(T + 1)]
        self.taken = [[self._actions[t, g] for g in self.groups] for t in range(T)]
        self._parts: dict[int, list[list[Part]]] = {}
        self._steps: dict[tuple[VecEnv, int], list[list[PreparedStep]]] = {}
        self._seen: mx.array | None = None
        self._trained_on = self.observations

    def parts(self, count: int) -> list[list[Part]]:
        """The agents of each step t < T in ``count`` equal parts; made once and kept."""
        if count not in self._parts:
            agents = self._agents(count)
            rows = [[self._part(t, each) for each in agents] for t in range(self.horizon)]
            mx.eval([part[:-1] for row in rows for part in row])
            self._parts[count] = rows
        return self._parts[count]

    def steps(self, environments: VecEnv, count: int) -> list[list[PreparedStep]]:
        """Of each step t < T, the environments' of so many equal parts; made once and kept.

        They take the actions of row t, and write row t + 1.
        """
        kept = environments, count
        if kept not in self._steps:
            parts = [*zip(self.groups_of(count), self._agents(count), strict=True)]
            self._steps[kept] = [
                [self._step(environments, t, *part) for part in parts] for t in range(self.horizon)
            ]
        return self._steps[kept]

    def groups_of(self, count: int) -> list[range]:
        """The groups of each of ``count`` equal parts."""
        each = len(self.groups) // count
        return [range(part * each, (part + 1) * each) for part in range(count)]

    def _agents(self, count: int) -> list[slice]:
        n = self.rewards.shape[1] // count
        return [slice(part * n, (part + 1) * n) for part in range(count)]

    def _step(self, environments: VecEnv, t: int, groups: range, agents: slice) -> PreparedStep:
        if isinstance(environments, PreparesSteps):
            rows = self._rows(t + 1, agents)
            return environments.prepare(groups, self._actions[t, agents], rows)

        def send() -> None:
            for g in groups:
                environments.send(g, self.taken[t][g], self.outputs[t + 1][g])

        def wait() -> None:
            for g in groups:
                environments.wait(g)

        return PreparedStep(send, wait)

    def _part(self, t: int, agents: slice) -> Part:
        chosen = self.actions, self.logprobs, self.values
        views = self._actions, self._logprobs, self._values
        read = self.observations, self.masks, self.terminals
        arrays = (None if a is None else a[t, agents] for a in (*read, *chosen, self._seen))
        return Part(*arrays, tuple(view[t, agents] for view in views))  # type: ignore

    def keep_seen(self) -> None:
        """From now on there is a copy of the observations, of T steps, for the GPU alone.

        Who acts writes it (``Part.seen``); what the host writes a GPU reads once, if it has memory
        of its own. It is what training reads until the next rollout begins.
        """
        if self._seen is None:
            T, *shape = self.observations.shape
            self._seen = mx.zeros((T - 1, *shape), self.observations.dtype)
            mx.eval(self._seen)
            self._parts = {}
        self._trained_on = self._seen

    def mark(self) -> None:
        """Mark all steps but the last as unwritten, for ``part`` and ``written``."""
        self._terminals[1:-1] = UNWRITTEN

    def mark_last(self) -> None:
        """Mark the last step, too. Its row is lost then, which the next rollout would begin with.

        If this rollout fails, ``restore`` has to replace that row.
        """
        self._terminals[-1] = UNWRITTEN

    @property
    def written(self) -> np.ndarray:
        """Number of steps of each agent that were written since they were marked, (N,) int."""
        unwritten = self._terminals[1:] == UNWRITTEN
        return np.where(unwritten.any(0), unwritten.argmax(0), self.horizon)

    def rows_after(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Return the row of each agent after its first ``steps`` (N,) steps, by field."""
        agents = np.arange(len(steps))
        rows = self.rows._asdict().items()
        return {name: array[steps, agents] for name, array in rows if array is not None}

    def excerpt(self, begin: int, end: int) -> "RolloutBuffer":
        """Return a new buffer of horizon ``end - begin`` with copies of rows begin to end."""
        buffer = RolloutBuffer(self._spec, end - begin, self.rewards.shape[1], len(self.groups))
        for to, source in zip(buffer.rows, self.rows, strict=True):
            if to is not None and source is not None:
                np.copyto(to, source[begin : end + 1])
        return buffer

    @property
    def part(self) -> float | None:
        """The share of the marked steps that was written since; None for rollouts of one step."""
        marks = self._terminals[1:-1, ::SAMPLED]
        return float(np.mean(marks != UNWRITTEN)) if marks.size else None

    @property
    def last_rows(self) -> np.ndarray | None:
        """Which rows hold an episode's last observation: ``finals``, for NumPy."""
        return self._finals

    def _rows(self, t: int, agents: slice = slice(None)) -> Rows:
        return self.rows.part(t, agents)

    def reset(self, vec: VecEnv) -> None:
        """Start all environments; the rollout that begins next continues from here."""
        vec.reset(self._rows(self.horizon))

    def begin(self, previous: "RolloutBuffer") -> None:
        """Copy the last row of the previous rollout (which may be this buffer's own) to row 0."""
        self._trained_on = self.observations
        for to, source in zip(self.rows, previous.rows, strict=True):
            if to is not None and source is not None:
                np.copyto(to[0], source[previous.horizon])

    def carry(self, row: int = -1) -> dict[str, mx.array]:
        """Copies of row T, which the next rollout begins with, or of another, by field."""
        rows = self._rows(row)._asdict()
        return {name: mx.array(row) for name, row in rows.items() if row is not None}

    @property
    def fields(self) -> dict[str, mx.array | None]:
        """What training reads, by name; masks and finals may be None."""
        names = "observations actions logprobs rewards terminals masks finals values"
        fields = {name: getattr(self, name) for name in names.split()}
        return {**fields, "observations": self._trained_on}

    def restore(self, carry: Mapping[str, mx.array | np.ndarray]) -> None:
        """Write a row of each agent, by field, to row T: see ``carry`` and ``rows_after``."""
        for name, row in self._rows(self.horizon)._asdict().items():
            if row is not None:
                np.copyto(row, np.asarray(carry[name]))

    def record(self, part: Part, rows: np.ndarray) -> None:
        """Store what was chosen for a part: (heads + 2, n)."""
        actions, logprobs, values = part.views
        np.copyto(actions, rows[:-2].T)
        np.copyto(logprobs, rows[-2])
        np.copyto(values, rows[-1])
