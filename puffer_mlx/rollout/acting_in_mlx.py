"""Act with MLX: one evaluation of the policy per step and shard of the agents."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import unpack_arrays
from puffer_mlx.ops.pack import pack_arrays
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import ACTING, ENVIRONMENTS
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.system.devices import building
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import PreparedStep, VecEnv

Streams = Callable[[], list[mx.Stream]]  # returns streams of the thread that collects rollouts


def one_shard_per_group(groups: int) -> int:
    """Return into how many shards a CPU divides the agents to act: one per group."""
    return groups


def shards_for_gpu(groups: int) -> int:
    """Return into how many shards a GPU divides the agents to act.

    It is the smallest divisor of ``groups`` above 1: two shards are enough to overlap acting with
    stepping, and each launch has a fixed cost.
    """
    return next((shards for shards in range(2, groups) if groups % shards == 0), groups)


def run_pipelined(
    steps: list[list[PreparedStep]],
    groups: list[range],
    timer: PhaseTimer,
    begin: Callable[[int, int], Any],
    store: Callable[[int, int, Any], None] | None = None,
    streams: int = 1,
) -> None:
    """Run the steps of a rollout: one shard of the agents acts while the other shards step.

    Args:
        steps: Prepared environment steps, by step and shard (``RolloutBuffer.steps``).
        groups: Indices of the groups in each shard.
        timer: Measures the phases ``eval_act`` and ``eval_env``.
        begin: (step, shard) -> arrays. Submits the computation of actions, and returns the arrays
            to wait for.
        store: (step, shard, arrays) writes the computed actions to the rollout's memory. None if
            the device writes actions to that memory itself.
        streams: Number of streams on which shards alternate, for the timeline.
    """
    timeline = timer.timeline
    shards = range(len(groups))
    start_times = [0.0 for _ in shards]  # when each shard began to act or to step
    pending: tuple[int, int, Any] | None = None  # step, shard and arrays that are being computed

    def finish(t: int, shard: int, chosen: Any) -> None:
        """Wait for the actions of a shard of the agents, and send them to its environments."""
        mx.eval(chosen)
        timer.lap("eval_act")
        if timeline:
            row = f"{ACTING} {shard % streams}"
            timeline.span(
                row, "act", start_times[shard], timer.last_lap_end, group=groups[shard][0], step=t
            )
        if store is not None:
            store(t, shard, chosen)
        start_times[shard] = timer.last_lap_end
        steps[t][shard].send()
        timer.lap("eval_env")

    def wait_for_environments(t: int, shard: int) -> None:
        """Wait until the environments of a shard of agents have written row t of the rollout."""
        steps[t - 1][shard].wait()  # for t = 0: steps from before the rollout
        timer.lap("eval_env")
        if timeline and t:
            first = groups[shard][0]
            began = start_times[shard]
            timeline.span(ENVIRONMENTS, "step", began, timer.last_lap_end, group=first, step=t - 1)
        start_times[shard] = timer.last_lap_end

    for t in range(len(steps)):
        for shard in shards:
            if pending and pending[1] == shard:  # it is the only shard: no other acts meanwhile
                finish(*pending)
                pending = None
            wait_for_environments(t, shard)
            chosen = begin(t, shard)
            timer.lap("eval_act")
            if pending:
                finish(*pending)
            pending = t, shard, chosen
    if pending:
        finish(*pending)
    for shard in shards:
        wait_for_environments(len(steps), shard)


class ActingInMLX:
    """Collects rollouts with MLX operations: a ``RolloutBackend`` for any device.

    Shards of the agents act alternately. While the device computes the actions of one shard, the
    host prepares the next one, and the environments of other shards step.

    Args:
        act: The policy's step, from ``act_functions.compile_act``.
        streams: Returns the streams on which the shards alternate.
        timer: Measures the phases ``eval_copy_in``, ``eval_act`` (acting), ``eval_copy_out``,
            ``eval_store`` and ``eval_env`` (waiting for environments).
        shards: Maps the number of groups to the number of shards.
        assignment: Policy of each agent in self-play. Weights are then a list: the
            learner's and each opponent's.

    Attributes:
        act: The policy's step.
        shards: Maps the number of groups to the number of shards.
    """

    in_c = False

    def __init__(
        self,
        act: Callable[..., Any],
        streams: Streams,
        timer: PhaseTimer,
        shards: Callable[[int], int] = one_shard_per_group,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        self.act = act
        self.shards = shards
        self._streams = streams
        self._timer = timer
        self._assignment = assignment

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: VecEnv,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """Collect a rollout that acts through MLX: see ``RolloutBackend.collect``."""
        timer = self._timer
        streams = self._streams()
        T = buffer.horizon
        Q = len(buffer.groups)
        P = self.shards(Q)
        step_arrays = buffer.step_arrays(P)
        groups = buffer.groups_of(P)
        with building, mx.stream(streams[0]):
            shard_states = [concat_states(states, indices) for indices in groups]
            noises = mx.split(noise.reshape(-1, noise.shape[-1]), T * P)  # views
            functions = [self.act] * P
            if self._assignment is not None:
                policies = np.split(self._assignment.policy, P)
                functions = [step_by_policy(self.act, each) for each in policies]
        mx.eval(noises, shard_states)
        timer.lap("eval_copy_in")

        def begin(t: int, shard: int) -> mx.array:
            observations, mask, terminals, *_ = step_arrays[t][shard]
            step_noise = noises[t * P + shard]
            state = shard_states[shard]
            with building, mx.stream(streams[shard % len(streams)]):
                chosen, shard_states[shard] = functions[shard](
                    weights, observations, state, step_noise, mask, terminals
                )
            mx.async_eval(chosen, shard_states[shard])
            return chosen

        def store(t: int, shard: int, chosen: mx.array) -> None:
            rows = np.asarray(chosen)
            timer.lap("eval_copy_out")
            buffer.record(step_arrays[t][shard], rows)
            timer.lap("eval_store")

        steps = buffer.steps(environments, P)
        run_pipelined(steps, groups, timer, begin, store, len(streams))
        with building, mx.stream(streams[0]):
            after = [each for state in shard_states for each in split_states(state, Q // P)]
        mx.eval(after)
        timer.lap("eval_env")
        return after


def step_by_policy(act: Callable[..., Any], policies: np.ndarray) -> Callable[..., Any]:
    """Return a function for one step of n agents that several policies play, in self-play.

    Args:
        act: Result of ``compile_act`` for several policies.
        policies: (n,), policy of each agent.

    Returns:
        A function with the arguments of a single policy's step, except that ``weights`` is a list
        with the weights of each policy.
    """
    used_policies = np.unique(policies).tolist()
    agents = [mx.array(np.flatnonzero(policies == policy), mx.int32) for policy in used_policies]
    agents_by_policy = np.argsort(policies, kind="stable")
    positions = mx.array(np.argsort(agents_by_policy), mx.int32)

    def step(weights: list[Any], *inputs: Any) -> Any:
        return act([weights[policy] for policy in used_policies], *inputs, agents, positions)

    return step


def concat_states(states: list[State], groups: range) -> State:
    """Concatenate the recurrent states of several groups of agents. A GPU does this in one launch.

    Args:
        states: State of each group.
        groups: Indices of the groups to concatenate.
    """
    group_states = [states[g] for g in groups]
    first = group_states[0]
    if len(group_states) == 1:
        return first
    dtypes = {array.dtype for array in leaves(first)}
    if pack_arrays.choose() is None or dtypes != {mx.float32}:
        return tree_map(lambda *arrays: mx.concatenate([*arrays]), *group_states)
    by_leaf = [*zip(*map(leaves, group_states), strict=True)]  # each leaf's arrays of all groups
    packed = pack_arrays([array for arrays in by_leaf for array in arrays])[0]
    shapes = [(sum(map(len, arrays)), *arrays[0].shape[1:]) for arrays in by_leaf]
    concatenated = iter(unpack_arrays(packed, shapes))
    return tree_map(lambda _: next(concatenated), first)  # in the order of ``leaves``


def split_states(state: State, groups: int) -> list[State]:
    """Split the recurrent state of all agents into views per group.

    The inverse of ``concat_states``.

    Args:
        state: Recurrent state of all agents.
        groups: Number of groups.
    """

    def state_of(group: int) -> State:
        return tree_map(lambda array: mx.split(array, groups)[group], state)

    return [state] if groups == 1 else [state_of(group) for group in range(groups)]
