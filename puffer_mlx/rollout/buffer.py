"""The memory of a rollout, shared by NumPy and MLX.

A rollout buffer is a set of MLX arrays with writable NumPy views of the same memory. Environments
write rows and the policy reads them without a copy. Arrays are time-major:

| field | shape | row t holds |
| --- | --- | --- |
| observations | (T + 1, N, D) | observation for the action of row t |
| rewards, terminals | (T + 1, N) | outcome of action t - 1; arrives with observation t |
| masks | (T + 1, N, A) | legal actions at t (uint8; None without masks) |
| final_observations | (T + 1, N) | above 0 if observation t is an episode's last (``VecEnv``) |
| actions | (T, N, heads) | action at t; float32, also for discrete actions |
| logprobs, values | (T, N) | log-probability of that action, value of observation t |

Row T is the first row of the next rollout: ``begin`` copies it to row 0. The reward of the last
action is therefore in row 0 of the next rollout. As in PufferLib, it is never used for learning.

Environments, the policy's C step and the GPU kernel write to this memory without MLX's knowledge.
MLX reads the memory when a graph is *evaluated*, so a buffer may be overwritten only after all
graphs that read it have been evaluated.

The agents of a step can be divided into *shards*, which act alternately. A shard is one group of
agents or several.
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


State = Any  # recurrent state of agents, tree of arrays
PROGRESS_STRIDE = 64  # progress of a rollout is read from every 64th agent
UNWRITTEN_TERMINAL = -1.0  # value of a terminal that isn't written yet


class Views(NamedTuple):
    """NumPy views of the arrays of a rollout that a policy reads or writes."""

    observations: np.ndarray
    terminals: np.ndarray
    masks: np.ndarray | None
    actions: np.ndarray
    logprobs: np.ndarray
    values: np.ndarray


class StepArrays(NamedTuple):
    """The arrays that a policy reads and writes in one step of n adjacent agents.

    The fields before ``views`` have the order of the arguments of ``StepOnGPU.act``.
    """

    observations: mx.array  # (n, D)
    mask: mx.array | None  # (n, A)
    terminals: mx.array  # (n,)
    actions: mx.array  # (n, heads)
    logprobs: mx.array  # (n,)
    values: mx.array  # (n,)
    obs_copy: mx.array | None  # (n, D), copy of the observations in GPU memory
    views: tuple[np.ndarray, ...]  # NumPy views of actions, log-probabilities and values


class RolloutBuffer:
    """Memory of one rollout: T steps of N agents in Q groups.

    Args:
        spec: Observations and actions of the environments.
        horizon: Number of steps T.
        agents: Number of agents N.
        groups: Number of groups Q; must divide N.
        final_observations: True if the environments report last observations (``VecEnv``).

    Attributes:
        views: NumPy views of the arrays that a policy reads and writes.
        rows: NumPy views of the arrays that environments write, with T + 1 rows.
        last_rows: NumPy view of ``final_observations``, (T + 1, N), or None.
        fields: Arrays that training reads, by name. Masks and final_observations may be None.
    """

    def __init__(
        self,
        spec: EnvSpec,
        horizon: int,
        agents: int,
        groups: int,
        final_observations: bool = False,
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
        self.final_observations, self.last_rows = (
            _shared((T + 1, N), mx.float32) if final_observations else (None, None)
        )
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
        # For each step and group: rows that environments write, actions that they read.
        self.outputs = [[self._rows(t, g) for g in self.groups] for t in range(T + 1)]
        self.taken = [[self._actions[t, g] for g in self.groups] for t in range(T)]
        self._shards: dict[int, list[list[StepArrays]]] = {}
        self._steps: dict[tuple[VecEnv, int], list[list[PreparedStep]]] = {}
        self._device_copy: mx.array | None = None
        names = "observations actions logprobs rewards terminals masks final_observations values"
        self.fields = {name: getattr(self, name) for name in names.split()}

    def shards(self, count: int) -> list[list[StepArrays]]:
        """Return the arrays of each step t < T for each of ``count`` equal shards. Cached."""
        if count not in self._shards:
            agents = self._agents(count)
            rows = [[self._step_arrays(t, each) for each in agents] for t in range(self.horizon)]
            mx.eval([arrays[:-1] for row in rows for arrays in row])
            self._shards[count] = rows
        return self._shards[count]

    def steps(self, environments: VecEnv, count: int) -> list[list[PreparedStep]]:
        """Return a prepared environment step for each t < T and each of ``count`` shards. Cached.

        Step t reads the actions of row t, and writes row t + 1.
        """
        key = environments, count
        if key not in self._steps:
            shards = [*zip(self.groups_of(count), self._agents(count), strict=True)]
            self._steps[key] = [
                [self._step(environments, t, *shard) for shard in shards]
                for t in range(self.horizon)
            ]
        return self._steps[key]

    def groups_of(self, count: int) -> list[range]:
        """Return the indices of the groups in each of ``count`` equal shards."""
        each = len(self.groups) // count
        return [range(shard * each, (shard + 1) * each) for shard in range(count)]

    def _agents(self, count: int) -> list[slice]:
        n = self.rewards.shape[1] // count
        return [slice(shard * n, (shard + 1) * n) for shard in range(count)]

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

    def _step_arrays(self, t: int, agents: slice) -> StepArrays:
        inputs = self.observations, self.masks, self.terminals
        outputs = self.actions, self.logprobs, self.values, self._device_copy
        views = self._actions, self._logprobs, self._values
        arrays = (None if a is None else a[t, agents] for a in (*inputs, *outputs))
        return StepArrays(*arrays, tuple(view[t, agents] for view in views))  # type: ignore

    def keep_device_copy(self) -> None:
        """Make training read a copy of the observations (T steps) in GPU memory.

        The acting kernel writes the copy (``StepArrays.obs_copy``), so a GPU with separate memory
        transfers the host's observations only once. The next ``begin`` ends this.
        """
        if self._device_copy is None:
            T, *shape = self.observations.shape
            self._device_copy = mx.zeros((T - 1, *shape), self.observations.dtype)
            mx.eval(self._device_copy)
            self._shards = {}
        self.fields["observations"] = self._device_copy

    def mark(self) -> None:
        """Mark all steps of a rollout but the last as unwritten, so that progress can be read.

        See ``written_fraction`` and ``written_steps``.
        """
        self._terminals[1:-1] = UNWRITTEN_TERMINAL

    def mark_last(self) -> None:
        """Mark the last step of a rollout as unwritten, so that its end can be read.

        This overwrites the terminals of row T. If the rollout fails, ``restore`` must replace them.
        """
        self._terminals[-1] = UNWRITTEN_TERMINAL

    @property
    def written_steps(self) -> np.ndarray:
        """Number of steps that the environments wrote since ``mark``, (N,) int."""
        unwritten = self._terminals[1:] == UNWRITTEN_TERMINAL
        return np.where(unwritten.any(0), unwritten.argmax(0), self.horizon)

    def rows_after(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Return each agent's row of environment outputs after some steps, by field.

        Args:
            steps: (N,) int, number of steps of each agent.
        """
        agents = np.arange(len(steps))
        rows = self.rows._asdict().items()
        return {name: array[steps, agents] for name, array in rows if array is not None}

    def excerpt(self, begin: int, end: int) -> "RolloutBuffer":
        """Return a new rollout buffer with copies of the environments' rows begin to end.

        Its horizon is ``end - begin``.
        """
        buffer = RolloutBuffer(self._spec, end - begin, self.rewards.shape[1], len(self.groups))
        for to, source in zip(buffer.rows, self.rows, strict=True):
            if to is not None and source is not None:
                np.copyto(to, source[begin : end + 1])
        return buffer

    @property
    def written_fraction(self) -> float | None:
        """Progress of a rollout: the fraction of marked steps that are written, 0 to 1.

        None for rollouts of one step.
        """
        marks = self._terminals[1:-1, ::PROGRESS_STRIDE]
        return float(np.mean(marks != UNWRITTEN_TERMINAL)) if marks.size else None

    def _rows(self, t: int, agents: slice = slice(None)) -> Rows:
        return self.rows.select(t, agents)

    def reset(self, vec: VecEnv) -> None:
        """Reset all environments. The next rollout begins with the observations they return."""
        vec.reset(self._rows(self.horizon))

    def begin(self, previous: "RolloutBuffer") -> None:
        """Begin a rollout: copy the last row of the previous rollout to row 0.

        ``previous`` may be this buffer.
        """
        self.fields["observations"] = self.observations
        for to, source in zip(self.rows, previous.rows, strict=True):
            if to is not None and source is not None:
                np.copyto(to[0], source[previous.horizon])

    def carry(self, row: int = -1) -> dict[str, mx.array]:
        """Return a copy of one row of environment outputs, by field.

        Args:
            row: Index of the row; by default T, the start of the next rollout.
        """
        rows = self._rows(row)._asdict()
        return {name: mx.array(row) for name, row in rows.items() if row is not None}

    def restore(self, carry: Mapping[str, mx.array | np.ndarray]) -> None:
        """Overwrite row T, the start of the next rollout.

        Args:
            carry: Result of ``carry`` or ``rows_after``.
        """
        for name, row in self._rows(self.horizon)._asdict().items():
            if row is not None:
                np.copyto(row, np.asarray(carry[name]))

    def record(self, step: StepArrays, rows: np.ndarray) -> None:
        """Store the actions, log-probabilities and values of one step of n agents.

        Args:
            step: Arrays of the step.
            rows: (heads + 2, n), the result of the policy.
        """
        actions, logprobs, values = step.views
        np.copyto(actions, rows[:-2].T)
        np.copyto(logprobs, rows[-2])
        np.copyto(values, rows[-1])
