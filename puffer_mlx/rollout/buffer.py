"""The memory of a rollout, shared by NumPy and MLX.

A rollout buffer is a set of MLX arrays with writable NumPy views of the same memory. Environments
write rows and the policy reads them without a copy. Arrays are time-major:

| field | shape | contents of row t |
| --- | --- | --- |
| observations | (T + 1, N, D) | observation t, from which action t is chosen |
| rewards, terminals | (T + 1, N) | outcome of action t - 1, written with observation t |
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
    """Allocate an MLX array of zeros. Returns it and a writable NumPy view of its memory."""
    array = mx.zeros(shape, dtype)
    mx.eval(array)
    view = np.asarray(array)
    mlx_memory.keep_on_host(view.ctypes.data, view.nbytes)
    return array, view


State = Any  # recurrent state of agents, tree of arrays
PROGRESS_STRIDE = 64  # progress of a rollout is read from every 64th agent
UNWRITTEN_TERMINAL = -1.0  # value of a terminal that isn't written yet


class Views(NamedTuple):
    """NumPy views of a rollout's arrays, T or more rows each, for an actor in C.

    The actor reads observations, terminals and masks, and writes the other arrays.
    """

    observations: np.ndarray
    terminals: np.ndarray
    masks: np.ndarray | None
    actions: np.ndarray
    logprobs: np.ndarray
    values: np.ndarray


class StepArrays(NamedTuple):
    """The rollout buffer's arrays that a policy reads and writes in one step of n adjacent agents.

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
    """Memory of one rollout, observations to values: T steps of N agents in Q groups.

    Args:
        spec: Observations and actions of the environments.
        horizon: Number of steps T.
        agents: Number of agents N.
        groups: Number of groups Q; must divide N.
        final_observations: True if the environments report last observations (``VecEnv``).

    Attributes:
        views: NumPy views of the arrays that a policy reads and writes.
        rows: NumPy views of the arrays that environments write, with T + 1 rows.
        final_observation_rows: NumPy view of the field ``final_observations``, (T + 1, N), or None.
        outputs: The rows that environments write, by step t <= T and group.
        taken: NumPy views of the actions that environments read, by step t < T and group.
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
        self.final_observations, self.final_observation_rows = (
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
            self._observations,
            self._rewards,
            self._terminals,
            self._masks,
            self.final_observation_rows,
        )

        n = N // groups
        self.groups = [slice(g * n, (g + 1) * n) for g in range(groups)]
        self.outputs = [[self._rows(t, g) for g in self.groups] for t in range(T + 1)]
        self.taken = [[self._actions[t, g] for g in self.groups] for t in range(T)]
        self._step_arrays: dict[int, list[list[StepArrays]]] = {}
        self._steps: dict[tuple[VecEnv, int], list[list[PreparedStep]]] = {}
        self._device_copy: mx.array | None = None
        names = "observations actions logprobs rewards terminals masks final_observations values"
        self.fields = {name: getattr(self, name) for name in names.split()}

    def step_arrays(self, count: int) -> list[list[StepArrays]]:
        """Return the arrays that a policy reads and writes, for each step t < T and shard. Cached.

        Args:
            count: Number of equal shards of the agents.
        """
        if count not in self._step_arrays:
            shards = self._agents(count)
            rows = [[self._arrays_of(t, agents) for agents in shards] for t in range(self.horizon)]
            mx.eval([arrays[:-1] for row in rows for arrays in row])
            self._step_arrays[count] = rows
        return self._step_arrays[count]

    def steps(self, environments: VecEnv, count: int) -> list[list[PreparedStep]]:
        """Return objects that step the environments, for each step t < T and shard. Cached.

        Step t reads the actions of row t, and writes row t + 1.

        Args:
            environments: Environments to step.
            count: Number of equal shards of the agents.
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
        """Return the indices of the groups of agents in each of ``count`` equal shards."""
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

    def _arrays_of(self, t: int, agents: slice) -> StepArrays:
        inputs = self.observations, self.masks, self.terminals
        outputs = self.actions, self.logprobs, self.values, self._device_copy
        views = self._actions, self._logprobs, self._values
        arrays = (None if a is None else a[t, agents] for a in (*inputs, *outputs))
        return StepArrays(*arrays, tuple(view[t, agents] for view in views))  # type: ignore

    def keep_device_copy(self) -> None:
        """Let training read a copy of the rollout's observations in GPU memory.

        The acting kernel writes the copy (``StepArrays.obs_copy``), so a GPU with separate memory
        transfers the host's observations only once. After the next ``begin``, training reads the
        original again.
        """
        if self._device_copy is None:
            T, *shape = self.observations.shape
            self._device_copy = mx.zeros((T - 1, *shape), self.observations.dtype)
            mx.eval(self._device_copy)
            self._step_arrays = {}  # the cached arrays lack the copy
        self.fields["observations"] = self._device_copy

    def mark(self) -> None:
        """Mark rows 1 to T - 1 of the rollout as unwritten, before environments write them.

        During the rollout, ``written_fraction`` and ``written_steps`` count marked rows that are
        overwritten.
        """
        self._terminals[1:-1] = UNWRITTEN_TERMINAL

    def mark_last(self) -> None:
        """Mark row T of the rollout as unwritten: ``written_steps`` then counts the last step, too.

        This overwrites the terminals of row T. If the rollout fails, ``restore`` must replace them.
        """
        self._terminals[-1] = UNWRITTEN_TERMINAL

    @property
    def written_steps(self) -> np.ndarray:
        """Number of steps of each agent that environments wrote in this rollout, (N,) int."""
        unwritten = self._terminals[1:] == UNWRITTEN_TERMINAL
        return np.where(unwritten.any(0), unwritten.argmax(0), self.horizon)

    def env_outputs_after(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Return what environments wrote after a given number of steps of each agent, by field.

        Args:
            steps: (N,) int, number of steps of each agent, 0 to T.

        Returns:
            Arrays (N, ...) by field: observations, rewards, terminals and others of ``Rows``.
        """
        agents = np.arange(len(steps))
        rows = self.rows._asdict().items()
        return {name: array[steps, agents] for name, array in rows if array is not None}

    def excerpt(self, begin: int, end: int) -> "RolloutBuffer":
        """Return a new rollout buffer with a copy of what environments wrote in some of the steps.

        These are the steps ``begin`` <= t < ``end``: the rows ``begin`` to ``end``, both included.

        It contains what environments wrote: the rows ``begin`` to ``end``, both included.
        """
        buffer = RolloutBuffer(self._spec, end - begin, self.rewards.shape[1], len(self.groups))
        for target, source in zip(buffer.rows, self.rows, strict=True):
            if target is not None and source is not None:
                np.copyto(target, source[begin : end + 1])
        return buffer

    @property
    def written_fraction(self) -> float | None:
        """Progress of a rollout: the fraction of its steps that environments have written, 0 to 1.

        None for rollouts of one step.
        """
        marks = self._terminals[1:-1, ::PROGRESS_STRIDE]
        return float(np.mean(marks != UNWRITTEN_TERMINAL)) if marks.size else None

    def _rows(self, t: int, agents: slice = slice(None)) -> Rows:
        return self.rows.select(t, agents)

    def reset(self, vec: VecEnv) -> None:
        """Reset all environments, which write their first observations into the rollout buffer.

        The next rollout begins with them.
        """
        vec.reset(self._rows(self.horizon))

    def begin(self, previous: "RolloutBuffer") -> None:
        """Begin a rollout: copy the last row of the previous rollout to row 0.

        ``previous`` may be this buffer.
        """
        self.fields["observations"] = self.observations
        for to, source in zip(self.rows, previous.rows, strict=True):
            if to is not None and source is not None:
                np.copyto(to[0], source[previous.horizon])

    def env_outputs(self, row: int = -1) -> dict[str, mx.array]:
        """Return a copy of the observations, rewards and other fields in one row of the rollout.

        Args:
            row: Index of the row; by default T, with which the next rollout begins.
        """
        arrays = self._rows(row)._asdict()
        return {name: mx.array(array) for name, array in arrays.items() if array is not None}

    def restore(self, outputs: Mapping[str, mx.array | np.ndarray]) -> None:
        """Overwrite the rollout's last row, T, with which the next rollout begins.

        Args:
            outputs: Result of ``env_outputs`` or ``env_outputs_after``.
        """
        for name, array in self._rows(self.horizon)._asdict().items():
            if array is not None:
                np.copyto(array, np.asarray(outputs[name]))

    def record(self, step: StepArrays, rows: np.ndarray) -> None:
        """Store the actions, log-probabilities and values of one step of n agents in the rollout.

        Args:
            step: Arrays of the step.
            rows: (heads + 2, n), the result of the policy.
        """
        actions, logprobs, values = step.views
        np.copyto(actions, rows[:-2].T)
        np.copyto(logprobs, rows[-2])
        np.copyto(values, rows[-1])
