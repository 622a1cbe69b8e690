"""Collect rollouts on a GPU that runs both the policy and the environments.

If the policy fits in a block of threads, one kernel collects a rollout in one launch
(``policy/rollout_on_gpu.py``). Otherwise each step takes a few launches (``in_steps.py``). Both
write each rollout to new arrays in GPU memory, where training reads them. Environments are copied
from the host once, and copied back when their state is saved, so checkpoints don't depend on the
device.
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

LAUNCH_SECONDS = 0.008  # longest launch on a Mac: one frame at 120 Hz
PROBE_STEPS = 4  # steps of the launch that is timed
WATCHDOG_ERROR = "Command buffer execution failed"  # MLX's error if macOS stops a launch
WATCHDOG_HINT = "set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in the shell"

GPURollouts = RolloutOnGPU | RolloutInSteps


class GPUError(UserError):
    """Error: macOS stopped a rollout on the GPU, and also its retry in smaller launches."""


def device_env(environments: VecEnv) -> DeviceEnv | None:
    """Return the source code and sizes of environments for a GPU, or None if it can't step them."""
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
    """Return an object that runs GPU rollouts in one launch, or None if the policy doesn't fit.

    See ``rollouts_on_gpu`` for the arguments.
    """
    game = device_env(vec)
    N = vec.num_agents
    if game is None:
        return None
    policies = np.zeros(N, np.int32) if assignment is None else assignment.policy
    blocks = None
    if game.agents > 1:
        blocks = partial(blocks_of_games, policies.reshape(-1, game.agents))
    kernel = rollout_on_gpu(policy, vec.spec, game, precision, vec.num_environments, blocks)
    return kernel if kernel and kernel.fits(horizon, N) else None


def rollouts_in_steps(
    policy: Policy,
    vec: VecEnv,
    horizon: int,
    precision: str = "",
    assignment: PolicyAssignment | None = None,
) -> RolloutInSteps | None:
    """Return an object that runs GPU rollouts in a few launches per step.

    Returns None when a GPU can't step the environments.

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
    """Return an object that runs rollouts (policy and environments) on a GPU, or None.

    It uses one launch per rollout if the policy fits, otherwise a few launches per step.

    Args:
        policy: The acting policy.
        vec: Environments with N agents.
        horizon: Number of steps T.
        precision: Type in which the policy is trained: see ``rollout_on_gpu``.
        assignment: Policy of each agent in self-play.
    """
    arguments = policy, vec, horizon, precision, assignment
    return rollouts_in_one_launch(*arguments) or rollouts_in_steps(*arguments)


def _last_row(array: mx.array) -> mx.array:
    """Return the last row of an MLX array, by ``mx.take``, because indexing would copy the row."""
    return mx.take(array, len(array) - 1, 0)


class EnvSnapshot(NamedTuple):
    """State and last outputs of all environments between two GPU rollouts, to return to later."""

    structs: mx.array  # (E, words) int32
    actions: mx.array  # (N, heads), actions of the last step
    arrived: EnvOutputs  # outputs of the last step


class EnvironmentsOnGPU:
    """C environments that a GPU steps, a rollout at a time.

    ``reset``, ``log``, ``state`` and ``restore`` are methods of ``VecEnv``.

    Args:
        vec: Environments on the host. They have the newest state only after a call of ``state``.
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
        """State of all environments as C structs, (E, words) int32."""
        if self.stepped is not None:
            return self.stepped.structs
        return mx.array(self._side.take())

    def commit(self, stepped: EnvSnapshot, log: mx.array) -> None:
        """Replace the environments' state by the result of a rollout.

        Args:
            stepped: Snapshot after the rollout.
            log: (logs,) float32, sums of the environments' logs.
        """
        self.stepped = stepped
        self._log = log

    def rollback(self, stepped: EnvSnapshot | None) -> None:
        """Return the environments to a snapshot; None for the host's state. Drops the log."""
        self.stepped = stepped
        self._log = None

    def reset(self, out: Rows) -> None:
        """Reset all environments on the host, and write their first observations.

        See ``VecEnv.reset``.
        """
        self._vec.reset(out)
        self.stepped = self._log = None

    def log(self) -> dict[str, float]:
        """Return the environments' metrics since the last call: see ``VecEnv.log``."""
        log = self.take_log()
        return self._vec.log() if log is None else self.read(log)

    def take_log(self) -> mx.array | None:
        """Return the environments' log of the last GPU rollout, and remove it from this object.

        ``read`` converts the log to metrics.
        """
        log = self._log
        self._log = None
        return log

    def read(self, log: mx.array) -> dict[str, float]:
        """Convert the log of a GPU rollout to the environments' metrics. Waits for the GPU.

        The log is the result of ``take_log``.
        """
        self._side.add_log(np.array(log))
        return self._vec.log()

    def state(self) -> np.ndarray | None:
        """Return the state of all environments for a checkpoint: see ``VecEnv.state``."""
        return self._vec.state() if self.stepped is None else self.state_of(self.stepped)

    def state_of(self, stepped: EnvSnapshot) -> np.ndarray | None:
        """Return the environments' state at a snapshot, in the format of a checkpoint."""
        rows = (None if each is None else np.array(each) for each in stepped.arrived)
        structs = np.array(stepped.structs)
        self._side.give(structs, np.array(stepped.actions), Rows(*rows))  # type: ignore
        return self._vec.state()

    def restore(self, state: np.ndarray) -> None:
        """Restore a saved state of all environments: see ``VecEnv.restore``."""
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
        fields: Arrays that training reads, by name. Masks may be None, final_observations is.
    """

    final_observation_rows = None

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
        """Observations of the last GPU rollout, (T, N, D); zeros before the first rollout."""
        if self._observations is None:  # not cached, as other threads couldn't evaluate it
            return mx.zeros(*self._empty)
        return self._observations

    def reset(self, vec: Any) -> None:
        """Reset all environments, and begin the next rollout with the observations they return.

        Args:
            vec: ``EnvironmentsOnGPU``.
        """
        rows = allocate_rows(vec, vec.num_agents)
        vec.reset(rows)
        self.last = EnvOutputs(*(None if each is None else mx.array(each) for each in rows[:4]))  # type: ignore

    def begin(self, previous: "BufferOnGPU") -> None:
        """Begin a rollout with the environments' last outputs of the previous rollout."""
        self.first = previous.last
        if previous is not self:  # this buffer's old arrays are no longer used
            self.fields = {}
            self._observations = previous._observations

    def fill(self, fields: dict[str, mx.array | None], last: EnvOutputs) -> None:
        """Store the arrays of a GPU rollout in this buffer.

        Args:
            fields: Arrays that training reads, by name.
            last: Environment outputs after the last action.
        """
        self.fields = fields
        self.last = last
        self._observations = fields["observations"]

    def env_outputs(self, row: int = -1) -> dict[str, mx.array]:
        """Return what the environments wrote before or after the rollout in this buffer, by field.

        Args:
            row: 0 for the outputs before the first action, otherwise those after the last action.
        """
        outputs = (self.last if row else self.first)._asdict()
        return {name: array for name, array in outputs.items() if array is not None}

    def restore(self, outputs: dict[str, mx.array]) -> None:
        """Begin the next rollout with saved environment outputs, the result of ``env_outputs``."""
        self.last = EnvOutputs(**{"masks": None, **outputs})


class RolloutsOnGPU:
    """Collect rollouts on a GPU that also steps the environments: a ``RolloutBackend``.

    macOS may stop a launch that delays the display. On a Mac, launches are therefore limited to
    ``LAUNCH_SECONDS``; the number of steps in a launch is measured before the first rollout. If
    macOS still stops a launch, the rollout is repeated from its start in smaller launches. The
    results don't depend on the size of launches.

    Args:
        kernel: Rollouts of the policy in the environments.
        streams: Returns the GPU's stream. Called in the thread that collects.
        timer: Measures the rollout as the phase ``eval_act``.
        steps: Steps per launch; 0 to measure them on a Mac, and to use the horizon elsewhere.

    Attributes:
        steps: Steps per launch; 0 until the first rollout has chosen them.
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
        self._packed_states: Any = None  # the same states in the kernel's layout
        self._compiled = mx.compile(self._in_one_launch)

    def collect(
        self,
        buffer: Any,
        environments: EnvironmentsOnGPU,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """Collect a rollout on a GPU, environments included: see ``RolloutBackend.collect``.

        Raises:
            GPUError: If macOS stopped a launch and also a shorter one.
        """
        retried = False
        while True:
            try:
                after = self._collect(buffer, environments, weights, states, noise)
            except RuntimeError as error:
                if WATCHDOG_ERROR not in str(error):
                    raise
                if retried:
                    raise self._gpu_error(error) from None
                retried = True
                self.steps = max(1, (self.steps or PROBE_STEPS) // 4)
            else:
                self._timer.lap("eval_act")
                return after

    def _gpu_error(self, error: RuntimeError) -> GPUError:
        fewer = f"--train.launch-steps {self.steps // 4 or 1}; or " if self.steps > 1 else ""
        return GPUError(
            f"macOS stopped the rollout on the GPU twice, at last with {self.steps} of its steps in"
            f" a launch: {error}",
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
            packed = self._packed_states if states is self._after else kernel.pack_states(*states)
            structs = environments.structs
        inputs = weights, packed, noise, structs, buffer.first
        if not self.steps:
            measures = backend() == "metal" and kernel_substitute() is None
            self.steps = self._measure_steps(stream, *inputs) if measures else T
        if self.steps < T:
            launches, last, log = self._in_launches(stream, T, *inputs)
            with building, mx.stream(stream):
                fields, after, actions = self._join(launches, len(states))
        else:
            # The first rollout verifies kernels, which can't happen inside a compiled function.
            compiles = isinstance(kernel, RolloutOnGPU) and self._after is not None
            compute = self._compiled if compiles else self._in_one_launch
            with building, mx.stream(stream):
                fields, after, actions, outputs, log = compute(len(states), *inputs)
            last = EnvOutputs(**{"masks": None, **outputs})
        rollout = DeviceRollout(**{"masks": None, **fields})
        arrays = *rollout, *last, log, actions  # all, because another thread may read them
        evaluate = mx.eval if self.waits else mx.async_eval
        evaluate(after, *(array for array in arrays if array is not None))
        self._after = after
        self._packed_states = rollout.states
        environments.commit(EnvSnapshot(rollout.structs, actions, last), log)
        names = ["observations", "actions", "logprobs", "rewards", "terminals", "masks", "values"]
        arrays_by_name = {name: getattr(rollout, name) for name in names}
        buffer.fill({**arrays_by_name, "final_observations": None}, last)
        return after

    def _in_one_launch(self, groups: int, *inputs: Any) -> tuple[Any, ...]:
        """Compute a GPU rollout in one launch. ``mx.compile`` accepts this, as no result is None.

        Args:
            groups: Number of groups of agents.
            inputs: Arguments of ``_launch``.

        Returns:
            The results of ``_join``, the last environment outputs by name, and sums of logs.
        """
        launched, last, log = self._launch(*inputs)
        outputs = {name: array for name, array in last._asdict().items() if array is not None}
        return *self._join([launched], groups), outputs, log

    def _in_launches(
        self,
        stream: Any,
        T: int,
        weights: Any,
        states: Any,
        noise: mx.array,
        structs: mx.array,
        first: EnvOutputs,
    ) -> tuple[list[DeviceRollout], EnvOutputs, mx.array]:
        """Compute a GPU rollout in several launches of ``steps`` steps each.

        Returns:
            The launches' results, the last environment outputs, and sums of logs.
        """
        launches = []
        logs = []
        for t in range(0, T, self.steps):
            launch_noise = noise[t : t + self.steps]
            with building, mx.stream(stream):
                launched, first, log = self._launch(weights, states, launch_noise, structs, first)
                logs.append(logs[-1] + log if logs else log)
            structs = launched.structs
            states = launched.states
            launches.append(launched)
            mx.eval(logs[-1], first.observations)  # otherwise MLX submits several launches as one
        return launches, first, logs[-1]

    def _join(
        self, launches: list[DeviceRollout], groups: int
    ) -> tuple[dict[str, Any], list[State], mx.array]:
        """Join the results of several GPU launches into those of one rollout.

        Returns:
            The rollout's fields that aren't None, each group's states, and the last actions.
        """
        rollout = join_rollouts(launches)
        after = split_states(self._kernel.unpack_state(rollout.states), groups)
        fields = {name: field for name, field in rollout._asdict().items() if field is not None}
        return fields, after, _last_row(rollout.actions)

    def _launch(
        self, weights: Any, states: Any, noise: mx.array, structs: mx.array, first: EnvOutputs
    ) -> tuple[DeviceRollout, EnvOutputs, mx.array]:
        """Launch ``len(noise)`` steps of the policy and the environments on the GPU.

        Returns:
            The launch's results, the last environment outputs, and sums of logs.
        """
        game = self._kernel.game
        packed = self._kernel.pack_weights(weights, noise.shape[1])
        launched = self._kernel.launch(len(noise), packed, states, noise, structs, first)
        log = launched.structs[:, game.log : game.log + game.logs].view(mx.float32).sum(0)
        masks = None if launched.masks is None else _last_row(launched.masks)
        last = EnvOutputs(
            launched.last_observations,
            _last_row(launched.rewards),
            _last_row(launched.terminals),
            masks,
        )
        return launched, last, log

    def _measure_steps(
        self, stream: Any, weights: Any, states: Any, noise: mx.array, *rest: Any
    ) -> int:
        """Return how many steps a GPU computes in ``LAUNCH_SECONDS``, by timing a launch."""
        noise = noise[:PROBE_STEPS]
        mx.eval(states, noise)
        seconds = 0.0
        for _ in range(2):  # the first launch compiles the kernel
            began = time.perf_counter()
            with building, mx.stream(stream):
                launched, *_ = self._launch(weights, states, noise, *rest)
            mx.eval(launched.values)
            seconds = time.perf_counter() - began
        return max(1, int(LAUNCH_SECONDS * len(noise) / seconds))
