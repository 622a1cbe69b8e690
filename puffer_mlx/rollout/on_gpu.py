"""Rollouts that stay on a GPU: environments, rows and the policy.

If the policy fits in a block of threads, one kernel collects a rollout in one launch
(``policy/rollout_on_gpu.py``). Otherwise each step is a few launches (``in_steps.py``). Both
create new arrays in GPU memory for every rollout, and training reads them there. Environments are
copied from the host once, and copied back when their state is saved, so checkpoints don't depend
on the device.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu.text import EnvRules
from puffer_mlx.policy.policy import Policy
from puffer_mlx.policy.rollout_on_gpu import (
    DeviceEnv,
    DeviceRollout,
    EnvOutputs,
    RolloutOnGPU,
    join_rollouts,
    rollout_on_gpu,
)
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting_in_kernel import blocks_of_games
from puffer_mlx.rollout.acting_in_mlx import Streams, split_states
from puffer_mlx.rollout.buffer import State
from puffer_mlx.rollout.in_steps import RolloutInSteps
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.backend import backend, kernel_substitute
from puffer_mlx.system.devices import building
from puffer_mlx.vec.base import Rows, VecEnv
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import allocate_rows

LAUNCH_SECONDS = 0.008  # longest launch on a Mac: the time of a frame at 120 Hz
PROBE_STEPS = 4  # steps of the launch that is measured
WATCHDOG_ERROR = "Command buffer execution failed"  # in MLX's error after macOS ended a launch
WATCHDOG_HINT = "set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in the shell"

GPURollouts = RolloutOnGPU | RolloutInSteps


class GPUError(UserError):
    """macOS stopped a computation on the GPU, and also the retry in smaller launches."""


def device_env(environments: VecEnv) -> DeviceEnv | None:
    """Return the environments' rules for a GPU, or None if a GPU can't step them."""
    if not isinstance(environments, NativeVec) or environments.gpu_side is None:
        return None
    owners, _ = environments.declared_policies()
    each = environments.num_agents // environments.num_environments
    if not np.array_equal(owners, np.arange(environments.num_agents) // each):
        return None  # the environments have different numbers of agents
    rules = environments.gpu_side.rules
    text = EnvRules(rules.header, rules.struct, rules.masked)
    return DeviceEnv(text, rules.words, rules.log, rules.logs, each)


def rollouts_in_one_launch(
    policy: Policy,
    vec: VecEnv,
    horizon: int,
    precision: str = "",
    assignment: PolicyAssignment | None = None,
) -> RolloutOnGPU | None:
    """Return the kernel that collects a rollout in one launch, or None if it doesn't fit.

    See ``rollouts_on_gpu`` for the arguments.
    """
    game = device_env(vec)
    N = vec.num_agents
    if game is None:
        return None
    policies = np.zeros(N, np.int32) if assignment is None else assignment.policy
    crews = partial(blocks_of_games, policies.reshape(-1, game.agents)) if game.agents > 1 else None
    kernel = rollout_on_gpu(policy, vec.spec, game, precision, vec.num_environments, crews)
    return kernel if kernel and kernel.fits(horizon, N) else None


def rollouts_in_steps(
    policy: Policy,
    vec: VecEnv,
    horizon: int,
    precision: str = "",
    assignment: PolicyAssignment | None = None,
) -> RolloutInSteps | None:
    """Return rollouts in a few launches per step, or None if a GPU can't step the environments.

    See ``rollouts_on_gpu`` for the arguments.
    """
    game = device_env(vec)
    steps = game and RolloutInSteps(policy, vec.spec, game, precision, assignment)
    return steps if steps and steps.fits(horizon, vec.num_agents) else None


def rollouts_on_gpu(
    policy: Policy,
    vec: VecEnv,
    horizon: int,
    precision: str = "",
    assignment: PolicyAssignment | None = None,
) -> GPURollouts | None:
    """Return rollouts in one launch if the policy fits, otherwise in steps, otherwise None.

    Args:
        policy: The acting policy.
        vec: Environments with N agents.
        horizon: Number of steps T.
        precision: Type in which the policy is trained: see ``rollout_on_gpu``.
        assignment: Assignment of policies to agents in self-play.
    """
    about = policy, vec, horizon, precision, assignment
    return rollouts_in_one_launch(*about) or rollouts_in_steps(*about)


def _last(array: mx.array) -> mx.array:
    """Return ``array[-1]`` as a view. Indexing would copy it with a kernel compiled by MLX."""
    return mx.take(array, len(array) - 1, 0)


class EnvSnapshot(NamedTuple):
    """Snapshot of the environments at a rollout boundary."""

    structs: mx.array  # (E, words) int32
    actions: mx.array  # (N, heads), last actions
    arrived: EnvOutputs  # outputs after the last actions


class EnvironmentsOnGPU:
    """Native environments that a GPU steps, whole rollouts at a time.

    ``reset``, ``log``, ``state`` and ``restore`` are those of a ``VecEnv``.

    Args:
        vec: Environments on the host. They have the newest state only after ``state``.
        kernel: GPU rollouts that step the environments.

    Attributes:
        kernel: GPU rollouts that step the environments.
        stepped: Snapshot after the last rollout; None while the host has the newest state.
    """

    def __init__(self, vec: NativeVec, kernel: GPURollouts) -> None:
        assert vec.gpu_side is not None
        self.kernel = kernel
        self._vec = vec
        self._side = vec.gpu_side
        self.spec = vec.spec
        self.num_agents = vec.num_agents
        self.num_groups = vec.num_groups
        self.final_observations = False
        self.stepped: EnvSnapshot | None = None
        self._log: mx.array | None = None

    @property
    def structs(self) -> mx.array:
        """All environments, (E, words) int32."""
        if self.stepped is not None:
            return self.stepped.structs
        return mx.array(self._side.take())

    def commit(self, stepped: EnvSnapshot, log: mx.array) -> None:
        """Continue from a snapshot. ``log`` has sums of the environments' logs, (logs,) float32."""
        self.stepped = stepped
        self._log = log

    def rollback(self, stepped: EnvSnapshot | None) -> None:
        """Continue from an earlier snapshot. Drops later steps and their log."""
        self.stepped = stepped
        self._log = None

    def reset(self, out: Rows) -> None:
        """See ``VecEnv``."""
        self._vec.reset(out)
        self.stepped = self._log = None

    def log(self) -> dict[str, float]:
        """See ``VecEnv``."""
        log = self.take_log()
        return self._vec.log() if log is None else self.read(log)

    def take_log(self) -> mx.array | None:
        """Return the last rollout's log for ``read``, and remove it from the next log."""
        log = self._log
        self._log = None
        return log

    def read(self, log: mx.array) -> dict[str, float]:
        """Wait for a log from ``take_log``, and return its values as ``log`` does."""
        self._side.add_log(np.array(log))
        return self._vec.log()

    def state(self) -> np.ndarray | None:
        """See ``VecEnv``."""
        return self._vec.state() if self.stepped is None else self.state_of(self.stepped)

    def state_of(self, stepped: EnvSnapshot) -> np.ndarray | None:
        """Wait for an earlier snapshot, and return its state as ``state`` does."""
        rows = (None if each is None else np.array(each) for each in stepped.arrived)
        structs = np.array(stepped.structs)
        self._side.give(structs, np.array(stepped.actions), Rows(*rows))  # type: ignore
        return self._vec.state()

    def restore(self, state: np.ndarray) -> None:
        """See ``VecEnv``."""
        self._vec.restore(state)
        self.stepped = self._log = None


class BufferOnGPU:
    """A rollout buffer in GPU memory, with the same fields as ``RolloutBuffer``.

    Args:
        spec: Observations and actions of the environments.
        horizon: Number of steps T.
        agents: Number of agents N.
        groups: Number of groups Q, used for recurrent states only.
        final_observations: Must be False, because C environments report no last observations.

    Attributes:
        fields: Arrays that training reads, by name. Masks may be None; final_observations are None.
    """

    last_rows = None

    def __init__(
        self,
        spec: EnvSpec,
        horizon: int,
        agents: int,
        groups: int,
        final_observations: bool = False,
    ) -> None:
        assert not final_observations
        self.horizon = horizon
        dtype = mx.uint8 if spec.observation_dtype == np.uint8 else mx.float32
        self._empty = (horizon, agents, spec.observation_size), dtype
        self._observations: mx.array | None = None
        rows = mx.zeros((horizon, agents))
        arrived = mx.zeros((horizon + 1, agents))
        masks = horizon + 1, agents, spec.mask_size
        self.fields: dict[str, mx.array | None] = {  # before the first rollout
            "observations": mx.zeros(*self._empty),
            "actions": mx.zeros((horizon, agents, spec.action.heads)),
            **{"logprobs": rows, "values": rows, "rewards": arrived, "terminals": arrived},
            "masks": mx.zeros(masks, mx.uint8) if spec.mask_size else None,
            "final_observations": None,
        }
        self.first: Any = None  # environment outputs before the first action
        self.last: Any = None  # environment outputs after the last action

    @property
    def observations(self) -> mx.array:
        """(T, N, D) of the last rollout; zeros before the first one."""
        if self._observations is None:  # not cached: another thread can't evaluate it
            return mx.zeros(*self._empty)
        return self._observations

    def reset(self, vec: Any) -> None:
        """Reset all environments, ``EnvironmentsOnGPU``. They give the next rollout's first row."""
        rows = allocate_rows(vec, vec.num_agents)
        vec.reset(rows)
        self.last = EnvOutputs(*(None if each is None else mx.array(each) for each in rows[:4]))  # type: ignore

    def begin(self, previous: "BufferOnGPU") -> None:
        """Begin the next rollout with the last outputs of the previous one."""
        self.first = previous.last
        if previous is not self:  # Its old arrays are no longer used.
            self.fields = {}
            self._observations = previous._observations

    def fill(self, fields: dict[str, mx.array | None], last: EnvOutputs) -> None:
        """Store a rollout's fields by name, and the last environment outputs."""
        self.fields = fields
        self.last = last
        self._observations = fields["observations"]

    def carry(self, row: int = -1) -> dict[str, mx.array]:
        """Return the last outputs by field, or the first ones if ``row`` is 0."""
        arrived = (self.last if row else self.first)._asdict()
        return {name: array for name, array in arrived.items() if array is not None}

    def restore(self, carry: dict[str, mx.array]) -> None:
        """Continue from the result of ``carry`` of a buffer with the same shapes."""
        self.last = EnvOutputs(**{"masks": None, **carry})


class RolloutsOnGPU:
    """Act and step environments on a GPU without host work between steps.

    A ``RolloutBackend``. macOS may stop a launch that delays the display. On a Mac, launches are
    therefore limited to ``LAUNCH_SECONDS``; the number of steps is measured before the first
    rollout. If macOS still stops a launch, the rollout is repeated from its start in smaller
    launches. The results don't depend on the size of launches.

    Args:
        kernel: Rollouts of the policy in the environments.
        streams: Returns the GPU's stream. Called in the thread that collects.
        timer: Measures the entire rollout as the phase ``eval_act``.
        steps: Steps per launch. 0 measures them on a Mac, and uses the full horizon elsewhere.

    Attributes:
        steps: Steps per launch, perhaps measured by the first rollout.
        waits: True if ``collect`` waits for the results. If False, the GPU computes while the host
            continues, and a launch that macOS stops isn't repeated.
    """

    in_c = False
    waits = True

    def __init__(
        self, kernel: GPURollouts, streams: Streams, timer: PhaseTimer, steps: int = 0
    ) -> None:
        self._kernel = kernel
        self._streams = streams
        self._timer = timer
        self.steps = steps
        self._after: list[State] | None = None  # states returned by the last rollout
        self._held: Any = None  # the same states in the kernel's layout
        self._compiled = mx.compile(self._in_one_launch)

    def collect(
        self,
        buffer: Any,
        environments: EnvironmentsOnGPU,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``RolloutBackend``. ``buffer`` is a ``BufferOnGPU``.

        Raises:
            GPUError: If the GPU's driver stopped a launch and also a shorter one.
        """
        again = False
        while True:
            try:
                after = self._collect(buffer, environments, weights, states, noise)
            except RuntimeError as error:
                if WATCHDOG_ERROR not in str(error):
                    raise
                if again:
                    raise self._ended_twice(error) from None
                again = True
                self.steps = max(1, (self.steps or PROBE_STEPS) // 4)
            else:
                self._timer.lap("eval_act")
                return after

    def _ended_twice(self, error: RuntimeError) -> GPUError:
        fewer = f"--train.launch-steps {self.steps // 4 or 1}; or " if self.steps > 1 else ""
        return GPUError(
            f"macOS ended the GPU's rollout twice, at last in launches of {self.steps} of its"
            f" steps: {error}",
            f"{fewer}{WATCHDOG_HINT}; or --train.rollout-device cpu",
        )

    def _collect(
        self,
        buffer: BufferOnGPU,
        environments: EnvironmentsOnGPU,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        kernel = self._kernel
        T = buffer.horizon
        stream = self._streams()[0]
        with building, mx.stream(stream):
            held = self._held if states is self._after else kernel.state(*states)
            structs = environments.structs
        inputs = weights, held, noise, structs, buffer.first
        if not self.steps:
            measured = backend() == "metal" and kernel_substitute() is None
            self.steps = self._measured(stream, *inputs) if measured else T
        if self.steps < T:
            launches, first, log = self._in_launches(stream, T, *inputs)
            with building, mx.stream(stream):
                fields, after, actions = self._joined(launches, len(states))
        else:
            # The first rollout verifies kernels, which isn't possible while a function is compiled.
            compiles = isinstance(kernel, RolloutOnGPU) and self._after is not None
            compute = self._compiled if compiles else self._in_one_launch
            with building, mx.stream(stream):
                fields, after, actions, arrived, log = compute(len(states), *inputs)
            first = EnvOutputs(**{"masks": None, **arrived})
        whole = DeviceRollout(**{"masks": None, **fields})
        arrays = *whole, *first, log, actions  # all, because another thread may read them
        evaluate = mx.eval if self.waits else mx.async_eval
        evaluate(after, *(array for array in arrays if array is not None))
        self._after = after
        self._held = whole.states
        environments.commit(EnvSnapshot(whole.structs, actions, first), log)
        names = ["observations", "actions", "logprobs", "rewards", "terminals", "masks", "values"]
        buffer.fill(
            {**{name: getattr(whole, name) for name in names}, "final_observations": None}, first
        )
        return after

    def _in_one_launch(self, groups: int, *inputs: Any) -> tuple[Any, ...]:
        """Compute a rollout in one launch. It can be compiled: results that are None are left out.

        Args:
            groups: Number of groups of agents.
            inputs: Arguments of ``_launch``.

        Returns:
            The results of ``_joined``, the last environment outputs by name, and sums of logs.
        """
        launched, last, log = self._launch(*inputs)
        arrived = {name: array for name, array in last._asdict().items() if array is not None}
        return *self._joined([launched], groups), arrived, log

    def _in_launches(
        self,
        stream: Any,
        T: int,
        weights: Any,
        held: Any,
        noise: mx.array,
        structs: mx.array,
        first: EnvOutputs,
    ) -> tuple[list[DeviceRollout], EnvOutputs, mx.array]:
        """Compute a rollout in launches of ``steps`` steps.

        Returns:
            The launches' results, the last environment outputs, and sums of logs.
        """
        launches = []
        logs = []
        for t in range(0, T, self.steps):
            part = noise[t : t + self.steps]
            with building, mx.stream(stream):
                launched, first, logged = self._launch(weights, held, part, structs, first)
                logs.append(logs[-1] + logged if logs else logged)
            structs = launched.structs
            held = launched.states
            launches.append(launched)
            mx.eval(logs[-1], first.observations)  # or MLX submits several launches as one
        return launches, first, logs[-1]

    def _joined(
        self, launches: list[DeviceRollout], groups: int
    ) -> tuple[dict[str, Any], list[State], mx.array]:
        """Return a rollout's fields that aren't None, each group's states, and last actions."""
        whole = join_rollouts(launches)
        after = split_states(self._kernel.state_after(whole.states), groups)
        fields = {name: field for name, field in whole._asdict().items() if field is not None}
        return fields, after, _last(whole.actions)

    def _launch(
        self, weights: Any, held: Any, noise: mx.array, structs: mx.array, first: EnvOutputs
    ) -> tuple[DeviceRollout, EnvOutputs, mx.array]:
        """Launch ``len(noise)`` steps. Returns results, last environment outputs, sums of logs."""
        game = self._kernel.game
        packed = self._kernel.weights(weights, noise.shape[1])
        launched = self._kernel.launch(len(noise), packed, held, noise, structs, first)
        log = launched.structs[:, game.log : game.log + game.logs].view(mx.float32).sum(0)
        masks = None if launched.masks is None else _last(launched.masks)
        arrived = launched.last_observations, _last(launched.rewards), _last(launched.terminals)
        return launched, EnvOutputs(*arrived, masks), log

    def _measured(self, stream: Any, weights: Any, held: Any, noise: mx.array, *rest: Any) -> int:
        """Measure and return the number of steps in a launch of ``LAUNCH_SECONDS``."""
        noise = noise[:PROBE_STEPS]
        mx.eval(held, noise)
        seconds = 0.0
        for _ in range(2):  # the first launch compiles the kernel
            began = time.perf_counter()
            with building, mx.stream(stream):
                launched, *_ = self._launch(weights, held, noise, *rest)
            mx.eval(launched.values)
            seconds = time.perf_counter() - began
        return max(1, int(LAUNCH_SECONDS * len(noise) / seconds))
