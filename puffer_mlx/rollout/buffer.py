"""Rollout memory, shared by NumPy and MLX.

A buffer is a set of MLX arrays with writable NumPy views of the same memory. Environments write
rows and the policy reads them without a copy. Arrays are time-major:

| field | shape | row t holds |
| --- | --- | --- |
| observations | (T + 1, N, D) | observation for the action of row t |
| rewards, terminals | (T + 1, N) | outcome of action t - 1, which *arrived with* observation t |
| masks | (T + 1, N, A) | legal actions at t (uint8; None without masks) |
| finals | (T + 1, N) | 1 or 2 if observation t is an episode's last (``VecEnv.finals``), or None |
| actions | (T, N, heads) | action at t; float32, discrete ids as whole numbers |
| logprobs, values | (T, N) | log-probability of that action, value of observation t |

Row T is the first row of the next rollout: ``begin`` copies it to row 0. The reward of the last
action is therefore in row 0 of the next rollout. As in PufferLib, it is never used for learning.

Environments, the policy's C step and the GPU kernel write to this memory without MLX's knowledge.
MLX reads it when a graph is *evaluated*, so a buffer may be overwritten only after all graphs that
read it have been evaluated.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.spec import EnvSpec
from puffer_mlx.system import mlx_memory
from puffer_mlx.vec.base import PreparedStep, PreparesSteps, Rows, VecEnv


def _shared(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Return an MLX array of zeros and a writable NumPy view of its memory."""
    array = mx.zeros(shape, dtype)
    mx.eval(array)
    view = np.asarray(array)
    mlx_memory.keep_on_host(view.ctypes.data, view.nbytes)
    return array, view


State = Any  # recurrent state of some agents, a tree of arrays
SAMPLED = 64  # The progress of a rollout is read from every 64th agent.
UNWRITTEN = -1.0  # marks a terminal that isn't written yet


class Views(NamedTuple):
    """Arrays of a buffer that a policy reads or writes, for NumPy. Shapes: see the module."""

    observations: np.ndarray
    terminals: np.ndarray
    masks: np.ndarray | None
    actions: np.ndarray
    logprobs: np.ndarray
    values: np.ndarray


class Part(NamedTuple):
    """Arrays of one step of n adjacent agents that a policy reads or writes.

    The order is that of the arguments of ``StepOnGPU.act``; ``views`` isn't one of them.
    """

    observations: mx.array  # (n, D)
    mask: mx.array | None  # (n, A)
    terminals: mx.array  # (n,)
    actions: mx.array  # (n, heads)
    logprobs: mx.array  # (n,)
    values: mx.array  # (n,)
    seen: mx.array | None  # (n, D), copy of the observations in GPU memory
    views: tuple[np.ndarray, ...]  # NumPy views of actions, log-probabilities and values


class RolloutBuffer:
    """Memory of one rollout: T steps of N agents in Q groups.

    Args:
        spec: Observations and actions of the environments.
        horizon: Number of steps T.
        agents: Number of agents N.
        groups: Number of groups Q; must divide N.
        finals: True if the environments report last observations (``VecEnv.finals``).

    Attributes:
        views: NumPy arrays of the memory that a policy reads and writes.
        rows: NumPy arrays of the memory that environments write, of all T + 1 steps.
        last_rows: NumPy view of ``finals``, (T + 1, N), or None.
        fields: arrays that training reads, by name. Masks and finals may be None.
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
        self.finals, self.last_rows = _shared((T + 1, N), mx.float32) if finals else (None, None)
        self.views = Views(
            self._observations,
            self._terminals,
            self._masks,
            self._actions,
            self._logprobs,
            self._values,
        )
        self.rows = Rows(
            self._observations, self._rewards, self._terminals, self._masks, self.last_rows
        )

        n = N // groups
        self.groups = [slice(g * n, (g + 1) * n) for g in range(groups)]
        # Views by step and group, created once: rows to write, actions to read.
        self.outputs = [[self._rows(t, g) for g in self.groups] for t in range(T + 1)]
        self.taken = [[self._actions[t, g] for g in self.groups] for t in range(T)]
        self._parts: dict[int, list[list[Part]]] = {}
        self._steps: dict[tuple[VecEnv, int], list[list[PreparedStep]]] = {}
        self._device_copy: mx.array | None = None
        names = "observations actions logprobs rewards terminals masks finals values"
        self.fields = {name: getattr(self, name) for name in names.split()}

    def parts(self, count: int) -> list[list[Part]]:
        """Return the arrays of each step t < T, divided into ``count`` equal parts. Cached."""
        if count not in self._parts:
            agents = self._agents(count)
            rows = [[self._part(t, each) for each in agents] for t in range(self.horizon)]
            mx.eval([part[:-1] for row in rows for part in row])
            self._parts[count] = rows
        return self._parts[count]

    def steps(self, environments: VecEnv, count: int) -> list[list[PreparedStep]]:
        """Return the prepared environment steps by step t < T and part. Cached.

        Step t reads the actions of row t, and writes row t + 1.
        """
        kept = environments, count
        if kept not in self._steps:
            parts = [*zip(self.groups_of(count), self._agents(count), strict=True)]
            self._steps[kept] = [
                [self._step(environments, t, *part) for part in parts] for t in range(self.horizon)
            ]
        return self._steps[kept]

    def groups_of(self, count: int) -> list[range]:
        """Return the groups of each of ``count`` equal parts."""
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
        arrays = (None if a is None else a[t, agents] for a in (*read, *chosen, self._device_copy))
        return Part(*arrays, tuple(view[t, agents] for view in views))  # type: ignore

    def enable_device_copy(self) -> None:
        """Keep a copy of the observations (T steps) in GPU memory, for training.

        The acting kernel writes it (``Part.seen``), so a GPU with separate memory transfers the
        host's observations only once. Training reads it until the next rollout begins.
        """
        if self._device_copy is None:
            T, *shape = self.observations.shape
            self._device_copy = mx.zeros((T - 1, *shape), self.observations.dtype)
            mx.eval(self._device_copy)
            self._parts = {}
        self.fields["observations"] = self._device_copy

    def mark(self) -> None:
        """Mark all steps except the last as unwritten, for ``part`` and ``written``."""
        self._terminals[1:-1] = UNWRITTEN

    def mark_last(self) -> None:
        """Mark the last step as unwritten, too.

        This overwrites part of row T. If the rollout fails, ``restore`` must replace that row.
        """
        self._terminals[-1] = UNWRITTEN

    @property
    def written(self) -> np.ndarray:
        """Number of steps written since ``mark`` for each agent, (N,) int."""
        unwritten = self._terminals[1:] == UNWRITTEN
        return np.where(unwritten.any(0), unwritten.argmax(0), self.horizon)

    def rows_after(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Return each agent's row after its first ``steps`` (N,) steps, by field."""
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
        """Fraction of the marked steps that are written, or None for rollouts of one step."""
        marks = self._terminals[1:-1, ::SAMPLED]
        return float(np.mean(marks != UNWRITTEN)) if marks.size else None

    def _rows(self, t: int, agents: slice = slice(None)) -> Rows:
        return self.rows.select(t, agents)

    def reset(self, vec: VecEnv) -> None:
        """Reset all environments. The next rollout begins with these observations."""
        vec.reset(self._rows(self.horizon))

    def begin(self, previous: "RolloutBuffer") -> None:
        """Copy the last row of the previous rollout to row 0. ``previous`` may be this buffer."""
        self.fields["observations"] = self.observations
        for to, source in zip(self.rows, previous.rows, strict=True):
            if to is not None and source is not None:
                np.copyto(to[0], source[previous.horizon])

    def carry(self, row: int = -1) -> dict[str, mx.array]:
        """Return a copy of a row by field; by default row T, the start of the next rollout."""
        rows = self._rows(row)._asdict()
        return {name: mx.array(row) for name, row in rows.items() if row is not None}

    def restore(self, carry: Mapping[str, mx.array | np.ndarray]) -> None:
        """Write to row T what ``carry`` or ``rows_after`` returned."""
        for name, row in self._rows(self.horizon)._asdict().items():
            if row is not None:
                np.copyto(row, np.asarray(carry[name]))

    def record(self, part: Part, rows: np.ndarray) -> None:
        """Store a part's actions, log-probabilities and values: ``rows`` is (heads + 2, n)."""
        actions, logprobs, values = part.views
        np.copyto(actions, rows[:-2].T)
        np.copyto(logprobs, rows[-2])
        np.copyto(values, rows[-1])
