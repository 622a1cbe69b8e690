"""Act with MLX: one evaluation of the policy per step and part of the agents."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.ops import unpack
from puffer_mlx.ops.pack import pack
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import ACTING, ENVIRONMENTS
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.system.devices import building
from puffer_mlx.trees import leaves
from puffer_mlx.vec.base import PreparedStep, VecEnv

Streams = Callable[[], list[mx.Stream]]  # Called in the thread that collects and owns the streams.


def each_group(groups: int) -> int:
    """Return the number of parts for CPUs: one per group."""
    return groups


def few_parts(groups: int) -> int:
    """Return the number of parts for GPUs: the smallest divisor of ``groups`` from 2.

    Two parts are enough to overlap acting with stepping, and each launch has a fixed cost.
    """
    return next((parts for parts in range(2, groups) if groups % parts == 0), groups)


def run_pipelined(
    steps: list[list[PreparedStep]],
    groups: list[range],
    timer: PhaseTimer,
    begin: Callable[[int, int], Any],
    store: Callable[[int, int, Any], None] | None = None,
    streams: int = 1,
) -> None:
    """Run the steps of a rollout: one part of the agents acts while the other parts step.

    Args:
        steps: Prepared environment steps by step and part (``RolloutBuffer.steps``).
        groups: Groups of each part.
        timer: Measures the phases ``eval_act`` and ``eval_env``.
        begin: Submits the actions of a step and part, and returns the arrays to wait for.
        store: Writes the computed actions of a step and part to the rollout's memory; None for
            devices that write them there.
        streams: Number of streams on which parts alternate, for the trace.
    """
    trace = timer.trace
    parts = range(len(groups))
    begun = [0.0 for _ in parts]  # start of the current act or step of each part
    pending: tuple[int, int, Any] | None = None

    def finish(t: int, p: int, chosen: Any) -> None:
        """Wait for the actions of a part, and send them to its environments."""
        mx.eval(chosen)
        timer.lap("eval_act")
        if trace:
            row = f"{ACTING} {p % streams}"
            trace.span(row, "act", begun[p], timer.now, group=groups[p][0], step=t)
        if store is not None:
            store(t, p, chosen)
        begun[p] = timer.now
        steps[t][p].send()
        timer.lap("eval_env")

    def arrive(t: int, p: int) -> None:
        steps[t - 1][p].wait()  # For t = 0, this waits for steps from before the rollout.
        timer.lap("eval_env")
        if trace and t:
            first = groups[p][0]
            trace.span(ENVIRONMENTS, "step", begun[p], timer.now, group=first, step=t - 1)
        begun[p] = timer.now

    for t in range(len(steps)):
        for p in parts:
            if pending and pending[1] == p:  # There is only one part, so nothing overlaps.
                finish(*pending)
                pending = None
            arrive(t, p)
            chosen = begin(t, p)
            timer.lap("eval_act")
            if pending:
                finish(*pending)
            pending = t, p, chosen
    if pending:
        finish(*pending)
    for p in parts:
        arrive(len(steps), p)


class ActingInMLX:
    """Act for the parts of the agents in turns. A part is one group or several.

    While the device computes the actions of one part, the host prepares the next part, and the
    environments of other parts step.

    Args:
        act: The policy's step: ``act_functions.compile_act``.
        streams: Returns the streams on which the parts alternate.
        timer: Measures the phases ``eval_copy_in``, ``eval_act`` (acting), ``eval_copy_out``,
            ``eval_store`` and ``eval_env`` (waiting for environments).
        parts: Maps the number of groups to the number of parts.
        assignment: Assignment of policies to agents in self-play. Weights are then a list: the
            learner's and each opponent's.

    Attributes:
        act: The policy's step.
        parts: Maps the number of groups to the number of parts.
    """

    in_c = False

    def __init__(
        self,
        act: Callable[..., Any],
        streams: Streams,
        timer: PhaseTimer,
        parts: Callable[[int], int] = each_group,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        self.act = act
        self.parts = parts
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
        """See ``RolloutBackend``."""
        timer = self._timer
        streams = self._streams()
        T = buffer.horizon
        Q = len(buffer.groups)
        P = self.parts(Q)
        parts = buffer.parts(P)
        groups = buffer.groups_of(P)
        with building, mx.stream(streams[0]):
            held = [concat_states(states, of) for of in groups]
            noises = mx.split(noise.reshape(-1, noise.shape[-1]), T * P)  # views
            acts = [self.act] * P
            if self._assignment is not None:
                parts_of = np.split(self._assignment.policy, P)
                acts = [step_by_policy(self.act, policies) for policies in parts_of]
        mx.eval(noises, held)
        timer.lap("eval_copy_in")

        def begin(t: int, p: int) -> mx.array:
            observations, mask, terminals, *_ = parts[t][p]
            with building, mx.stream(streams[p % len(streams)]):
                chosen, held[p] = acts[p](
                    weights, observations, held[p], noises[t * P + p], mask, terminals
                )
            mx.async_eval(chosen, held[p])
            return chosen

        def store(t: int, p: int, chosen: mx.array) -> None:
            rows = np.asarray(chosen)
            timer.lap("eval_copy_out")
            buffer.record(parts[t][p], rows)
            timer.lap("eval_store")

        steps = buffer.steps(environments, P)
        run_pipelined(steps, groups, timer, begin, store, len(streams))
        with building, mx.stream(streams[0]):
            after = [each for state in held for each in split_states(state, Q // P)]
        mx.eval(after)
        timer.lap("eval_env")
        return after


def step_by_policy(act: Callable[..., Any], policies: np.ndarray) -> Callable[..., Any]:
    """Return the step function for n agents that several policies act for.

    Args:
        act: ``compile_act`` for several policies.
        policies: (n,), policy of each agent.

    Returns:
        A function with the arguments of one policy's step, but for a list of all policies'
        weights.
    """
    present = np.unique(policies).tolist()
    rows = [mx.array(np.flatnonzero(policies == p), mx.int32) for p in present]
    order = np.argsort(policies, kind="stable")
    back = mx.array(np.argsort(order), mx.int32)

    def by_policy(weights: list[Any], *seen: Any) -> Any:
        return act([weights[p] for p in present], *seen, rows, back)

    return by_policy


def concat_states(states: list[State], groups: range) -> State:
    """Concatenate the states of several groups. A GPU does this in one launch."""
    first, *others = (states[g] for g in groups)
    if not others:
        return first
    dtypes = {array.dtype for array in leaves(first)}
    if pack.choose() is None or dtypes != {mx.float32}:
        return tree_map(lambda *arrays: mx.concatenate([*arrays]), first, *others)
    places = [*zip(leaves(first), *map(leaves, others), strict=True)]
    shapes = [(sum(map(len, place)), *place[0].shape[1:]) for place in places]
    arrays = iter(unpack(pack([array for place in places for array in place])[0], shapes))
    return tree_map(lambda _: next(arrays), first)


def split_states(state: State, groups: int) -> list[State]:
    """Return the state of each group as views: the inverse of ``concat_states``."""

    def of(group: int) -> State:
        return tree_map(lambda array: mx.split(array, groups)[group], state)

    return [state] if groups == 1 else [of(group) for group in range(groups)]
